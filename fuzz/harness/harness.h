/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What every harness in C offers: one input, which ends the process if
 * something does not hold. libFuzzer calls it through main.c, the smoke test
 * of the ordinary tests through smoke.c.
 */
#ifndef TG_FUZZ_HARNESS_H
#define TG_FUZZ_HARNESS_H

#include <stdio.h>
#include <stdlib.h>

int fuzz_one(const unsigned char *data, unsigned long size);

static inline void fuzz_must(int holds, const char *what)
{
	if (holds)
		return;
	fprintf(stderr, "does not hold: %s\n", what);
	abort();
}

#endif
