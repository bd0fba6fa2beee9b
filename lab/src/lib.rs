// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Real time: network namespaces, real servers, open-loop load.
