// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Readers of traces: one pass over a stream, in bounded memory, from a reader that the caller
//! opened.
