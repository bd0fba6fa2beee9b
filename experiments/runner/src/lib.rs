// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs, judges and draws the experiments.
