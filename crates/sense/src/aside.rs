// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Work that may have to wait for somebody, while the tick waits for nobody: to list interfaces takes a lock
//! that who changes them holds, and /proc is long on a large machine.

use std::sync::mpsc::{Receiver, TryRecvError, channel};

/// One piece of such work at a time, in a thread of its own. What is under way when this is dropped ends by
/// itself. A thread has the privileges of when it began, so there must be none before they are given up.
#[derive(Debug)]
pub struct Aside<T>(Option<Receiver<T>>);

impl<T> Default for Aside<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: Send + 'static> Aside<T> {
    /// Begins, unless something is under way. Where no thread can be had there is no answer.
    pub fn begin(&mut self, work: impl FnOnce() -> T + Send + 'static) {
        if self.0.is_some() {
            return;
        }
        let (sender, receiver) = channel();
        let run = move || {
            // Nobody may want to know any more.
            let _ = sender.send(work());
        };
        let thread = std::thread::Builder::new().name("tidegate-aside".into()).spawn(run);
        self.0 = thread.is_ok().then_some(receiver);
    }

    /// Whether something is under way, or its answer was not taken yet.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.0.is_some()
    }

    /// The answer, once it is there, and only once.
    pub fn answer(&mut self) -> Option<T> {
        match self.0.as_ref()?.try_recv() {
            Ok(answer) => {
                self.0 = None;
                Some(answer)
            }
            Err(TryRecvError::Disconnected) => {
                self.0 = None;
                None
            }
            Err(TryRecvError::Empty) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(aside: &mut Aside<u32>) -> u32 {
        for _ in 0..10_000 {
            if let Some(answer) = aside.answer() {
                return answer;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        panic!("no answer within 10 s")
    }

    #[test]
    fn one_piece_of_work_at_a_time_is_answered_once() {
        let mut aside = Aside::default();
        assert_eq!(aside.answer(), None, "nothing was begun");
        let (go, wait_for) = channel::<()>();
        aside.begin(move || {
            let _ = wait_for.recv();
            7
        });
        aside.begin(|| 8);
        assert!(aside.is_busy());
        assert_eq!(aside.answer(), None, "nobody waits");
        go.send(()).unwrap();
        assert_eq!(wait(&mut aside), 7);
        assert_eq!(aside.answer(), None);
        assert!(!aside.is_busy());
        aside.begin(|| 9);
        assert_eq!(wait(&mut aside), 9);
    }
}
