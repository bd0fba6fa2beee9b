// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The owner task: one process, messages in, snapshots out.
