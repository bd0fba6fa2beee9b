// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The thread that writes a file of the record. A disk may hang, and the loop that renews the lease must not
//! wait for it.

use crate::state::Store;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;
use tidegate_units::Nanos;

/// How often a file that could not be written is tried again, and one that changes is written.
const WRITE_EVERY: Nanos = Nanos::SECOND;
/// How long the end of a process waits for its last words to be written.
const LAST_WORDS: Duration = Duration::from_millis(300);

/// What a file holds.
pub(crate) trait Content {
    /// Not all of it is on its way to the file.
    fn changed(&mut self) -> &mut bool;

    /// The whole file.
    fn encode(&self) -> Vec<u8>;
}

/// A file, and when it is written.
pub(crate) struct Paper {
    store: Option<Box<dyn Store + Send>>,
    writer: Option<Writer>,
    offered: Option<Nanos>,
}

impl Paper {
    /// One that is not written yet. `None`: it never is.
    pub(crate) const fn new(store: Option<Box<dyn Store + Send>>) -> Self {
        Self { store, writer: None, offered: None }
    }

    /// What is in the file. `None`: there is none.
    pub(crate) fn read(&mut self) -> Result<Option<Vec<u8>>, String> {
        let read = self.store.as_mut().map(|store| store.read());
        read.unwrap_or(Ok(None)).map_err(|error| format!("cannot be read: {error}"))
    }

    /// Keeps a file that cannot be used, for this reason, under another name; what is to be told of it.
    pub(crate) fn set_aside(&mut self, why: &str) -> String {
        match self.store.as_mut().map(|store| store.set_aside()) {
            None => why.to_owned(),
            Some(Ok(name)) => format!("{why}; it is set aside as {name}"),
            Some(Err(error)) => format!("{why}; it cannot be set aside, and is lost: {error}"),
        }
    }

    /// Begins to write. To be called once the process is in charge and has given up its privileges.
    pub(crate) fn open(&mut self) -> Result<(), String> {
        let Some(store) = self.store.take() else { return Ok(()) };
        self.writer = Some(Writer::start(store).map_err(|error| error.to_string())?);
        Ok(())
    }

    /// Gives the file to the thread, now and then. An error when the last one could not be written.
    pub(crate) fn write(&mut self, now: Nanos, content: &mut dyn Content) -> Result<(), String> {
        let Some(writer) = &self.writer else { return Ok(()) };
        let failed = writer.failed();
        if self.offered.is_none_or(|at| now.since(at) >= WRITE_EVERY) {
            self.offered = Some(now);
            *content.changed() |= failed.is_some();
            writer.offer(content);
        }
        failed.map_or(Ok(()), Err)
    }

    /// Waits until all is written, not for long.
    pub(crate) fn flush(&self, content: &mut dyn Content) {
        if let Some(writer) = &self.writer {
            writer.flush(LAST_WORDS);
            writer.offer(content);
            writer.flush(LAST_WORDS);
        }
    }
}

/// What became of the last file.
#[derive(Debug, Default)]
struct Outcome {
    /// How many files are with the thread.
    open: usize,
    failed: Option<String>,
}

/// The thread that writes, and what it says.
#[derive(Debug)]
struct Writer {
    files: SyncSender<Vec<u8>>,
    outcome: Arc<(Mutex<Outcome>, Condvar)>,
}

impl Writer {
    /// Starts it: a thread has the privileges of the one that starts it.
    fn start(store: Box<dyn Store + Send>) -> std::io::Result<Self> {
        // One is being written, one waits.
        let (files, received) = sync_channel(1);
        let outcome = Arc::<(Mutex<Outcome>, Condvar)>::default();
        let told = Arc::clone(&outcome);
        let name = "record".to_owned();
        std::thread::Builder::new().name(name).spawn(move || write(store, &received, &told))?;
        Ok(Self { files, outcome })
    }

    /// Gives it what changed, if it has time for it; otherwise the next call does.
    fn offer(&self, content: &mut dyn Content) {
        if !std::mem::take(content.changed()) {
            return;
        }
        self.count(1);
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) =
            self.files.try_send(content.encode())
        {
            self.count(-1);
            *content.changed() = true;
        }
    }

    fn count(&self, more: isize) {
        let mut outcome = self.outcome.0.lock().unwrap_or_else(PoisonError::into_inner);
        outcome.open = outcome.open.saturating_add_signed(more);
    }

    /// Waits until all that it was given is written, no longer than this.
    fn flush(&self, patience: Duration) {
        let outcome = self.outcome.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Who waited for too long goes on without it.
        drop(self.outcome.1.wait_timeout_while(outcome, patience, |outcome| outcome.open > 0));
    }

    /// Why the last file could not be written; it is to be offered again.
    fn failed(&self) -> Option<String> {
        self.outcome.0.lock().unwrap_or_else(PoisonError::into_inner).failed.clone()
    }
}

fn write(
    mut store: Box<dyn Store + Send>,
    files: &Receiver<Vec<u8>>,
    told: &(Mutex<Outcome>, Condvar),
) {
    while let Ok(file) = files.recv() {
        let failed = store.write(&file).err().map(|error| error.to_string());
        let mut outcome = told.0.lock().unwrap_or_else(PoisonError::into_inner);
        outcome.open = outcome.open.saturating_sub(1);
        outcome.failed = failed;
        told.1.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A content that grows.
    #[derive(Default)]
    struct Growing {
        bytes: usize,
        changed: bool,
    }

    impl Growing {
        const fn grow(&mut self) {
            self.bytes += 1;
            self.changed = true;
        }
    }

    impl Content for Growing {
        fn changed(&mut self) -> &mut bool {
            &mut self.changed
        }

        fn encode(&self) -> Vec<u8> {
            vec![b'x'; self.bytes]
        }
    }

    /// A disk that hangs until it is told to go on.
    struct Slow(Arc<(Mutex<bool>, Condvar)>, Arc<Mutex<Vec<usize>>>);

    impl Store for Slow {
        fn read(&mut self) -> std::io::Result<Option<Vec<u8>>> {
            Ok(None)
        }

        fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
            let hangs = self.0.0.lock().unwrap();
            drop(self.0.1.wait_while(hangs, |hangs| *hangs).unwrap());
            self.1.lock().unwrap().push(bytes.len());
            Err(std::io::ErrorKind::StorageFull.into())
        }

        fn remove(&mut self) -> std::io::Result<()> {
            Ok(())
        }

        fn here(&self) -> crate::state::Here {
            crate::state::Here::default()
        }
    }

    #[test]
    fn a_disk_that_hangs_or_is_full_keeps_nobody_waiting() {
        let hangs = Arc::new((Mutex::new(true), Condvar::new()));
        let written = Arc::<Mutex<Vec<usize>>>::default();
        let slow = Slow(Arc::clone(&hangs), Arc::clone(&written));
        let writer = Writer::start(Box::new(slow)).unwrap();
        let mut content = Growing::default();
        for _ in 0..50 {
            content.grow();
            writer.offer(&mut content);
        }
        writer.flush(Duration::from_millis(1));
        assert!(written.lock().unwrap().is_empty() && content.changed);
        *hangs.0.lock().unwrap() = false;
        hangs.1.notify_all();
        writer.flush(Duration::from_secs(10));
        writer.offer(&mut content);
        writer.flush(Duration::from_secs(10));
        let last = written.lock().unwrap().last().copied();
        assert_eq!(last, Some(50), "the last word is written whole");
        assert!(written.lock().unwrap().len() <= 3);
        assert!(writer.failed().is_some_and(|why| why.contains("space")), "{:?}", writer.failed());
    }
}
