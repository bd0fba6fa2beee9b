// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * A CGI program behind a bounded queue, as the script engine of the paper's server is: one request is in
 * service, so many wait in the order in which they came, and whoever finds no place is told "too busy".
 *
 *   queue init PLACES        makes the queue, in the IPC namespace in which it is run
 *   queue watch ...          its monitor, see watch() below
 *   (no arguments)           CGI. Query string: work_us=N (CPU time of a request), busy_us=N (of "too busy")
 *
 * The queue is a set of System V semaphores: the kernel hands over in order, and gives back what a killed
 * process held (SEM_UNDO).
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <time.h>

#define KEY 0x71756575
#define COST_US_MAX 60e6
#define LADDERS_MAX 4
/* So often the monitor writes down what it sees. */
#define NOTE_US 50000

enum { SERVICE, PLACES, SERVED, BUSY, SEMAPHORES };

static double seconds(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static double number(const char *name)
{
	const char *query = getenv("QUERY_STRING");
	const char *at = query ? strstr(query, name) : NULL;

	return at ? strtod(at + strlen(name), NULL) : 0;
}

/* CPU time of this process: what others use meanwhile does not count. */
static void spend(double until_us)
{
	if (until_us > COST_US_MAX)
		until_us = COST_US_MAX;
	while (seconds(CLOCK_PROCESS_CPUTIME_ID) * 1e6 < until_us)
		;
}

static int change(int set, unsigned short which, short by, short flags)
{
	struct sembuf op = { .sem_num = which, .sem_op = by, .sem_flg = flags };
	int done;

	do
		done = semop(set, &op, 1);
	while (done < 0 && errno == EINTR);
	return done;
}

static int init(int places)
{
	int set = semget(KEY, SEMAPHORES, IPC_CREAT | IPC_EXCL | 0666);

	/* The places last: who finds none is told so, and nobody is served before all is there. */
	if (set < 0 || semctl(set, SERVICE, SETVAL, 1) < 0 ||
	    semctl(set, PLACES, SETVAL, places) < 0) {
		perror("the queue");
		return 1;
	}
	return 0;
}

static int say(const char *status, const char *text)
{
	printf("Status: %s\r\nContent-Type: text/plain\r\nContent-Length: %zu\r\n\r\n%s", status,
	       strlen(text), text);
	return fflush(stdout) ? 1 : 0;
}

static int serve(void)
{
	int set = semget(KEY, SEMAPHORES, 0);
	int status;

	if (set < 0)
		return say("500 Internal Server Error", "no queue\n");
	if (change(set, PLACES, -1, IPC_NOWAIT | SEM_UNDO) < 0) {
		spend(seconds(CLOCK_PROCESS_CPUTIME_ID) * 1e6 + number("busy_us="));
		status = say("503 Server Too Busy", "too busy\n");
		change(set, BUSY, 1, 0);
		return status;
	}
	if (change(set, SERVICE, -1, SEM_UNDO) < 0)
		return say("500 Internal Server Error", "not served\n");
	spend(seconds(CLOCK_PROCESS_CPUTIME_ID) * 1e6 + number("work_us="));
	change(set, SERVED, 1, 0);
	/* The next one begins while this one's response is on its way. */
	change(set, SERVICE, 1, SEM_UNDO);
	change(set, PLACES, 1, SEM_UNDO);
	return say("200 OK", "ok\n");
}

struct ladder {
	int abatement, onset, on;
};

static void tell(int socket, const struct sockaddr_in *to, const struct ladder *ladders, int count)
{
	static unsigned long sequence;
	char text[64];
	int length = snprintf(text, sizeof(text), "%lu", ++sequence);

	for (int i = 0; i < count; i++)
		length += snprintf(text + length, sizeof(text) - (size_t)length, " %d",
				   ladders[i].on);
	/* A message that is lost is repeated. */
	(void)!sendto(socket, text, (size_t)length, 0, (const struct sockaddr *)to, sizeof(*to));
}

/*
 * queue watch PERIOD_US REPEAT_MS ADDRESS PORT [ABATEMENT:ONSET ...]
 *
 * Looks at the queue so often. A ladder is throttled from its onset on until fewer than its abatement
 * wait; each change is told by UDP, and repeated while somebody is throttled. On standard output:
 *   q SECONDS WAITING SERVED BUSY      what it sees
 *   t SECONDS ON ...                   a change, by ladder
 */
static int watch(int argc, char **argv)
{
	struct ladder ladders[LADDERS_MAX] = { 0 };
	struct sockaddr_in to = { .sin_family = AF_INET };
	int set = semget(KEY, SEMAPHORES, 0), out = socket(AF_INET, SOCK_DGRAM, 0);
	int count = argc - 4;
	long period_us, repeat_ms;
	double noted = 0, told = 0;

	if (set < 0 || out < 0 || argc < 4 || count > LADDERS_MAX ||
	    inet_pton(AF_INET, argv[2], &to.sin_addr) != 1) {
		fprintf(stderr, "queue watch: no queue, no socket, or wrong words\n");
		return 1;
	}
	period_us = strtol(argv[0], NULL, 10);
	repeat_ms = strtol(argv[1], NULL, 10);
	to.sin_port = htons((uint16_t)strtol(argv[3], NULL, 10));
	for (int i = 0; i < count; i++)
		sscanf(argv[4 + i], "%d:%d", &ladders[i].abatement, &ladders[i].onset);
	for (;;) {
		struct timespec pause = { period_us / 1000000, period_us % 1000000 * 1000 };
		int waiting = semctl(set, SERVICE, GETNCNT), any = 0, changed = 0;
		double now = seconds(CLOCK_MONOTONIC);

		if (waiting < 0)
			return 0;
		for (int i = 0; i < count; i++) {
			int on = ladders[i].on ? waiting >= ladders[i].abatement :
						 waiting >= ladders[i].onset;

			changed |= on != ladders[i].on;
			any |= ladders[i].on = on;
		}
		if (changed || (any && now - told >= (double)repeat_ms / 1e3)) {
			tell(out, &to, ladders, count);
			told = now;
		}
		if (changed) {
			printf("t %.6f", now);
			for (int i = 0; i < count; i++)
				printf(" %d", ladders[i].on);
			printf("\n");
		}
		if (now - noted >= NOTE_US / 1e6) {
			printf("q %.6f %d %d %d\n", now, waiting, semctl(set, SERVED, GETVAL),
			       semctl(set, BUSY, GETVAL));
			noted = now;
		}
		fflush(stdout);
		nanosleep(&pause, NULL);
	}
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "init"))
		return init(atoi(argv[2]));
	if (argc > 2 && !strcmp(argv[1], "watch"))
		return watch(argc - 2, argv + 2);
	return serve();
}
