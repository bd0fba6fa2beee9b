// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How far the replay is, on a terminal.

use super::source::Source;
use indicatif::{HumanCount, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::cell::Cell;
use std::io::IsTerminal;
use std::sync::atomic::Ordering;
use tidegate_sim::whatif::WhatIf;

/// Lines between two looks.
const EVERY: u32 = 4096;

/// A bar by bytes where the log has a length, else a spinner; nothing where there is no terminal.
pub(crate) struct Progress {
    bar: ProgressBar,
    left: Cell<u32>,
}

impl Progress {
    pub(crate) fn new(source: &Source) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let target =
            if terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(source.size, target);
        let template = if source.size.is_some() {
            "{bar:30} {percent:>3} %  {bytes} of {total_bytes}  {msg}  eta {eta}"
        } else {
            "{spinner} {bytes}  {msg}  {elapsed}"
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self { bar, left: Cell::new(EVERY) }
    }

    /// A line was read.
    pub(crate) fn advance(&self, source: &Source, whatif: &WhatIf) {
        let left = self.left.get() - 1;
        self.left.set(if left == 0 { EVERY } else { left });
        if left == 0 {
            self.bar.set_position(source.read.load(Ordering::Relaxed));
            let second = whatif.now().as_secs_f64();
            let offered = HumanCount(whatif.offered());
            self.bar.set_message(format!("second {second:.0}, {offered} requests"));
        }
    }

    /// Takes it off the screen.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
