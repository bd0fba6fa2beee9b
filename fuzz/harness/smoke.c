/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The harness without a fuzzer: inputs from stdin (32-bit length and bytes,
 * again and again), each as it is and then several times damaged by a seeded
 * generator. Usage: smoke ROUNDS SEED
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

#define SMOKE_INPUT_MAX 8192	/* bytes */
#define SMOKE_DAMAGE_MAX 6	/* bytes changed in one round */

static uint64_t smoke_state;

/* xorshift64*: Vigna, "An experimental exploration of Marsaglia's xorshift" */
static uint32_t smoke_random(void)
{
	smoke_state ^= smoke_state >> 12;
	smoke_state ^= smoke_state << 25;
	smoke_state ^= smoke_state >> 27;
	return smoke_state * 0x2545f4914f6cdd1dULL >> 32;
}

static void smoke_damage(unsigned char *input, uint32_t length)
{
	uint32_t times = smoke_random() % SMOKE_DAMAGE_MAX;

	for (uint32_t i = 0; length && i <= times; i++) {
		uint32_t at = smoke_random() % length;

		if (smoke_random() & 1)
			input[at] ^= 1U << (smoke_random() & 7);
		else
			input[at] = smoke_random();
	}
}

int main(int argc, char **argv)
{
	static unsigned char input[SMOKE_INPUT_MAX], damaged[SMOKE_INPUT_MAX];
	uint64_t count = 0;
	uint32_t length;
	long rounds;

	if (argc != 3)
		return 2;
	rounds = atol(argv[1]);
	smoke_state = strtoull(argv[2], NULL, 10) | 1;
	while (fread(&length, sizeof(length), 1, stdin) == 1) {
		if (length > sizeof(input) ||
		    fread(input, 1, length, stdin) != length)
			return 2;
		fuzz_one(input, length);
		count++;
		for (long i = 0; i < rounds; i++, count++) {
			uint32_t cut = length;

			memcpy(damaged, input, length);
			smoke_damage(damaged, length);
			if (!(smoke_random() & 7))
				cut = smoke_random() % (length + 1);
			fuzz_one(damaged, cut);
		}
	}
	printf("%llu\n", (unsigned long long)count);
	return 0;
}
