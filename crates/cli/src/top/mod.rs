// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `tidegate top`: a live text screen.

mod draw;
mod history;
mod screen;

use crate::args::{Remote, TopArgs};
use crate::control::UNEXPECTED;
use crate::status;
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use draw::draw;
use history::History;
use screen::Screen;
use std::io::Write;
use tidegate_api::exit::Exit;
use tidegate_model::snapshot::Snapshot;

/// What the screen shows.
#[derive(Debug, Default)]
pub(crate) struct View {
    pub(crate) snapshot: Snapshot,
    pub(crate) history: History,
    /// Index of the service whose history is shown.
    pub(crate) selected: usize,
    /// Why the figures are old, if they are.
    pub(crate) problem: Option<String>,
}

impl View {
    pub(crate) fn update(&mut self, snapshot: Snapshot) {
        self.history.record(&snapshot);
        self.selected = self.selected.min(snapshot.services.len().saturating_sub(1));
        self.snapshot = snapshot;
        self.problem = None;
    }

    /// Takes a key; whether to go on.
    fn key(&mut self, key: KeyEvent) -> bool {
        let last = self.snapshot.services.len().saturating_sub(1);
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            _ if key.kind == KeyEventKind::Release => {}
            KeyCode::Char('q') | KeyCode::Esc => return false,
            KeyCode::Char('c') if control => return false,
            KeyCode::Up | KeyCode::Char('k') => self.selected = self.selected.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.selected = last.min(self.selected + 1),
            _ => {}
        }
        true
    }
}

pub(crate) fn top(remote: &Remote, args: &TopArgs, out: &mut dyn Write) -> anyhow::Result<Exit> {
    if args.once {
        return status::status(remote, args.output, out);
    }
    let mut client = remote.connect()?;
    // The first look happens before the screen is taken: its error is read on a normal terminal.
    let first = status::fetch(&mut client)?;
    let mut view = View::default();
    view.update(*first);
    let mut screen = Screen::open()?;
    loop {
        screen.terminal.draw(|frame| draw(frame, &view))?;
        if event::poll(args.every)? {
            if let Event::Key(key) = event::read()?
                && !view.key(key)
            {
                return Ok(Exit::Ok);
            }
            continue;
        }
        // A daemon that restarts or hands over is met again on a new connection.
        let looked = status::fetch(&mut client).or_else(|_| {
            client = remote.connect()?;
            status::fetch(&mut client)
        });
        match looked {
            Ok(snapshot) => view.update(*snapshot),
            Err(e) if e.to_string() == UNEXPECTED => return Err(e),
            Err(e) => view.problem = Some(e.to_string()),
        }
    }
}
