// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * A CGI program of configurable cost, for loading real web servers.
 *
 * Query string: kind=busy|wait  mean_us=N  shape=constant|exponential|lognormal|pareto|bimodal
 * a=X b=Y (the shape's parameters)  bytes=N (length of the body, random characters).
 *
 * busy burns CPU time of this thread (so a slower or shared CPU makes it last longer); wait sleeps.
 * The shapes have mean 1 and are those of the crate tidegate-workload.
 */
#define _GNU_SOURCE
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#define COST_US_MAX 60e6
#define BYTES_MAX (1 << 20)

static const char *query;

static const char *find(const char *name)
{
	size_t length = strlen(name);
	const char *at = query;

	while (at && *at) {
		if (!strncmp(at, name, length) && at[length] == '=')
			return at + length + 1;
		at = strchr(at, '&');
		if (at)
			at++;
	}
	return NULL;
}

static double number(const char *name, double otherwise)
{
	const char *text = find(name);

	return text ? strtod(text, NULL) : otherwise;
}

static int is(const char *name, const char *value)
{
	const char *text = find(name);

	return text && !strncmp(text, value, strlen(value));
}

static double uniform(void)
{
	uint64_t bits = 0;

	if (getrandom(&bits, sizeof(bits), 0) != sizeof(bits))
		bits = (uint64_t)clock() * 0x9E3779B97F4A7C15ull;
	return (double)(bits >> 11) / 9007199254740992.0;
}

static double pareto_mean(double alpha, double ratio)
{
	double cut = 1 - pow(ratio, -alpha);

	return alpha / (alpha - 1) * (1 - pow(ratio, 1 - alpha)) / cut;
}

/* A sample of mean 1. */
static double sample(void)
{
	double a = number("a", 1), b = number("b", 1);

	if (is("shape", "exponential"))
		return -log(1 - uniform());
	if (is("shape", "lognormal")) {
		double variance = log(1 + a * a);
		double normal = sqrt(-2 * log(1 - uniform())) * cos(2 * M_PI * uniform());

		return exp(sqrt(variance) * normal - variance / 2);
	}
	if (is("shape", "pareto")) {
		double x = pow(1 - uniform() * (1 - pow(b, -a)), -1 / a);

		return x / pareto_mean(a, b);
	}
	if (is("shape", "bimodal")) {
		double light = 1 / (1 - a + a * b);

		return uniform() < a ? light * b : light;
	}
	return 1;
}

static double used_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static void spend(double us)
{
	if (is("kind", "wait")) {
		struct timespec t = { (time_t)(us / 1e6), (long)(fmod(us, 1e6) * 1e3) };

		nanosleep(&t, NULL);
		return;
	}
	/* From the start of the process: loading it is part of the cost. */
	while (used_us() < us)
		;
}

/* As many random characters, in blocks. */
static void letters(long bytes)
{
	static const char set[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
	uint64_t state = (uint64_t)(uniform() * 9007199254740992.0) | 1;
	char block[4096];

	while (bytes > 0) {
		long i, n = bytes < (long)sizeof(block) ? bytes : (long)sizeof(block);

		for (i = 0; i < n; i++) {
			state ^= state << 13;
			state ^= state >> 7;
			state ^= state << 17;
			block[i] = set[state >> 58];
		}
		fwrite(block, 1, (size_t)n, stdout);
		bytes -= n;
	}
}

int main(void)
{
	double us;
	long bytes;

	query = getenv("QUERY_STRING");
	us = number("mean_us", 1000) * sample();
	spend(us > COST_US_MAX ? COST_US_MAX : us < 0 ? 0 : us);
	bytes = (long)number("bytes", 3);
	if (bytes < 0 || bytes > BYTES_MAX)
		bytes = 3;
	printf("Content-Type: text/plain\r\nContent-Length: %ld\r\n\r\n", bytes);
	letters(bytes);
	return 0;
}
