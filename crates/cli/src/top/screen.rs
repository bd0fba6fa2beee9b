// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The terminal, taken and given back.

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use std::io::{self, Stdout};

/// The terminal in raw mode on its alternate screen; given back by drop, and after a panic.
pub(crate) struct Screen {
    pub(crate) terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Screen {
    pub(crate) fn open() -> io::Result<Self> {
        // try_init gives the terminal back in a panic hook of its own.
        Ok(Self { terminal: ratatui::try_init()? })
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}
