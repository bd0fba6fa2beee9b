/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * libfuzzer-sys calls this function with a slice of bytes, which the C ABI of
 * the machines that we run on passes as pointer and length: so a target in C
 * needs no line of unsafe Rust.
 */
#include "harness.h"

int rust_fuzzer_test_input(const unsigned char *data, unsigned long size);

int rust_fuzzer_test_input(const unsigned char *data, unsigned long size)
{
	return fuzz_one(data, size);
}
