// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a router measures and decides (`policy/router`), against references that are written from the
//! papers and share no code with the C.

mod crowd;
mod durations;
mod hot;
mod pushback;
mod refusal;
mod tsw;
