// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an experiment shows while it runs: one line a step, and the second just gone.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::Duration;
use tidegate_experiments::survival::Watch;
use tidegate_lab::Progress;

/// A spinner with the present step; plain lines where there is no terminal.
pub(crate) struct Screen {
    bar: ProgressBar,
    terminal: bool,
    step: String,
}

impl Screen {
    pub(crate) fn new(terminal: bool) -> Self {
        let target =
            if terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, target);
        if let Ok(style) = ProgressStyle::with_template("{spinner} [{elapsed_precise}] {msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        Self { bar, terminal, step: String::new() }
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Watch for Screen {
    fn step(&mut self, what: &str) {
        if self.terminal {
            self.bar.println(format!("  {what}"));
        } else {
            eprintln!("{what}");
        }
        self.step = what.to_string();
        self.bar.set_message(self.step.clone());
    }

    fn second(&mut self, progress: &Progress) {
        let Some(stream) = progress.streams.first() else { return };
        let text = format!(
            "{}: second {:3}  offered {:5}/s  good {:5}/s  refused {:5}/s  p99 {:6.0} ms  waiting {}",
            self.step,
            progress.second,
            stream.started,
            stream.counts.good,
            stream.counts.refused,
            stream.service.quantile(0.99).as_millis_f64(),
            stream.in_flight
        );
        if !self.terminal && progress.second.is_multiple_of(5) {
            eprintln!("  {text}");
        }
        self.bar.set_message(text);
    }
}
