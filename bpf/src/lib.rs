// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The dataplane: loader of the BPF objects, and the only place that names libbpf.
