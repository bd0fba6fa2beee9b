// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The queue of the interfaces over the last second, and what they sent in it.

use crate::qdisc::{Interface, InterfaceSource};
use crate::sense::HOLD_MAX;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use tidegate_model::signals::{InterfaceQueue, Reading};
use tidegate_units::Nanos;

/// What the mean is over: a queue goes from full to empty and back within 20 ms.
const WINDOW: Nanos = Nanos::SECOND;
/// Samples closer than this to the one before say nothing new.
const APART_MIN: Nanos = Nanos::from_millis(5);
/// Most samples in the window.
const SAMPLES_MAX: usize = 256;

/// The last second of one interface.
#[derive(Debug, Default)]
struct Recent {
    queue: VecDeque<(Nanos, InterfaceQueue)>,
    sent: VecDeque<(Nanos, u64)>,
}

/// Drops what is older than the window, but for the last `keep`: they are shown with their age.
/// Where it takes two, one from before the window stays, so that they span it.
fn trim<T>(samples: &mut VecDeque<(Nanos, T)>, now: Nanos, keep: usize) {
    let old = |samples: &VecDeque<(Nanos, T)>| {
        samples.get(keep - 1).is_some_and(|(at, _)| now.since(*at) >= WINDOW)
    };
    while samples.len() > SAMPLES_MAX || samples.len() > keep && old(samples) {
        samples.pop_front();
    }
}

impl Recent {
    fn queue(&self) -> Option<InterfaceQueue> {
        let (_, last) = self.queue.back()?;
        let samples = self.queue.len() as f64;
        // Of the present limit, should it have changed.
        let share: f64 = self.queue.iter().map(|(_, q)| q.length / q.limit).sum::<f64>() / samples;
        Some(InterfaceQueue { length: share * last.limit, limit: last.limit })
    }

    /// Bytes per second; a counter that went back is a new interface.
    fn sent(&self) -> Option<f64> {
        let ((from, before), (to, now)) = (self.sent.front()?, self.sent.back()?);
        let seconds = to.since(*from).as_secs_f64();
        let bytes = now.checked_sub(*before)?;
        (seconds > 0.0).then(|| bytes as f64 / seconds)
    }
}

/// The interfaces that answers leave by.
#[derive(Default)]
pub(crate) struct Interfaces {
    source: Option<Box<dyn InterfaceSource + Send>>,
    wanted: Vec<String>,
    found: Vec<Interface>,
    queues: Vec<(u32, InterfaceQueue)>,
    recent: BTreeMap<u32, Recent>,
    queue_at: Option<Nanos>,
    sent_at: Option<Nanos>,
    problem: Option<String>,
}

impl Interfaces {
    pub(crate) fn watch(&mut self, source: Box<dyn InterfaceSource + Send>, wanted: Vec<String>) {
        *self = Self { source: Some(source), wanted, ..Self::default() };
    }

    /// None: nothing is asked of the kernel any more.
    pub(crate) fn rename(&mut self, wanted: Vec<String>) {
        self.wanted = wanted;
    }

    /// Looks at the queues.
    pub(crate) fn sample(&mut self, now: Nanos) {
        let Some(source) = &mut self.source else { return };
        if self.queue_at.is_some_and(|at| now.since(at) < APART_MIN) || self.found.is_empty() {
            return;
        }
        if let Err(error) = source.queues(&self.found, &mut self.queues) {
            self.problem = Some(error.to_string());
            return;
        }
        // A queue that is gone is no queue, and not the one that it was.
        for (index, recent) in &mut self.recent {
            if !self.queues.iter().any(|(of, _)| of == index) {
                recent.queue.clear();
            }
        }
        for (index, queue) in &self.queues {
            let samples = &mut self.recent.entry(*index).or_default().queue;
            samples.push_back((now, *queue));
            if samples.len() > SAMPLES_MAX {
                samples.pop_front();
            }
            self.queue_at = Some(now);
        }
    }

    /// Looks at the interfaces and their queues.
    pub(crate) fn tick(&mut self, now: Nanos) {
        self.problem = None;
        if self.wanted.is_empty() {
            self.found.clear();
            self.recent.clear();
            return;
        }
        let Some(source) = &mut self.source else { return };
        let read: io::Result<()> = source.interfaces(&self.wanted, &mut self.found);
        match read {
            Err(error) => self.problem = Some(error.to_string()),
            Ok(()) => {
                for interface in &self.found {
                    let recent = self.recent.entry(interface.index).or_default();
                    recent.sent.push_back((now, interface.sent_bytes));
                    self.sent_at = Some(now);
                }
                let found = &self.found;
                self.recent.retain(|index, _| found.iter().any(|i| i.index == *index));
            }
        }
        self.sample(now);
        for recent in self.recent.values_mut() {
            trim(&mut recent.queue, now, 1);
            trim(&mut recent.sent, now, 2);
        }
    }

    /// The queue that is fullest for its limit, with its age.
    pub(crate) fn queue(&self, now: Nanos) -> Option<Reading<InterfaceQueue>> {
        let queues = self.recent.values().filter_map(Recent::queue);
        let fullest =
            queues.max_by(|a, b| (a.length / a.limit).total_cmp(&(b.length / b.limit)))?;
        shown(self.queue_at, now, fullest)
    }

    /// Bytes per second, all interfaces summed, with their age.
    pub(crate) fn sent(&self, now: Nanos) -> Option<Reading<f64>> {
        let sums: Vec<f64> = self.recent.values().filter_map(Recent::sent).collect();
        if sums.is_empty() {
            return None;
        }
        shown(self.sent_at, now, sums.iter().sum())
    }

    /// Why there is no queue, if there is none.
    pub(crate) fn problem(&self, now: Nanos) -> Option<String> {
        if let Some(problem) = &self.problem {
            return Some(problem.clone());
        }
        if self.queue(now).is_some() {
            return None;
        }
        let names = self.wanted.join(", ");
        Some(match (&self.source, self.found.is_empty()) {
            (None, _) => "interfaces are not watched".to_owned(),
            (_, true) => format!("none of the interfaces {names} is there"),
            _ => format!(
                "none of the interfaces {names} has a queue (`tc qdisc show`): \
                 what waits, waits elsewhere"
            ),
        })
    }
}

fn shown<T>(at: Option<Nanos>, now: Nanos, value: T) -> Option<Reading<T>> {
    let age = now.since(at?);
    (age <= HOLD_MAX).then_some(Reading { value, age })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Kernel {
        interfaces: Vec<Interface>,
        queues: Vec<(u32, InterfaceQueue)>,
        broken: bool,
        asked: u32,
    }

    struct Fake(Arc<Mutex<Kernel>>);

    impl InterfaceSource for Fake {
        fn interfaces(&mut self, _: &[String], into: &mut Vec<Interface>) -> io::Result<()> {
            let mut kernel = self.0.lock().unwrap();
            kernel.asked += 1;
            into.clone_from(&kernel.interfaces);
            if kernel.broken { Err(io::Error::other("broken")) } else { Ok(()) }
        }

        fn queues(
            &mut self,
            _: &[Interface],
            into: &mut Vec<(u32, InterfaceQueue)>,
        ) -> io::Result<()> {
            let mut kernel = self.0.lock().unwrap();
            kernel.asked += 1;
            into.clone_from(&kernel.queues);
            if kernel.broken { Err(io::Error::other("broken")) } else { Ok(()) }
        }
    }

    fn queue(length: f64, limit: f64) -> InterfaceQueue {
        InterfaceQueue { length, limit }
    }

    fn watched() -> (Interfaces, Arc<Mutex<Kernel>>) {
        let kernel = Arc::new(Mutex::new(Kernel {
            interfaces: vec![Interface { index: 1, ..Interface::default() }],
            queues: vec![(1, queue(0.0, 100.0))],
            ..Kernel::default()
        }));
        let mut interfaces = Interfaces::default();
        interfaces.watch(Box::new(Fake(Arc::clone(&kernel))), vec!["eth0".into()]);
        (interfaces, kernel)
    }

    #[test]
    fn without_a_wanted_interface_the_kernel_is_not_asked() {
        let (mut interfaces, kernel) = watched();
        interfaces.tick(Nanos::ZERO);
        assert_eq!(kernel.lock().unwrap().asked, 2, "the interfaces, the queues");
        interfaces.rename(Vec::new());
        for ms in [100, 200, 300] {
            interfaces.tick(Nanos::from_millis(ms));
            interfaces.sample(Nanos::from_millis(ms + 20));
        }
        assert_eq!(kernel.lock().unwrap().asked, 2);
        let now = Nanos::from_millis(320);
        assert_eq!((interfaces.queue(now), interfaces.sent(now)), (None, None));
        interfaces.rename(vec!["eth0".into()]);
        interfaces.tick(Nanos::from_millis(400));
        assert!(interfaces.queue(Nanos::from_millis(400)).is_some());
    }

    #[test]
    fn the_mean_is_over_a_second_of_samples_between_ticks() {
        let (mut interfaces, kernel) = watched();
        // Full for 20 ms, empty for 20 ms, and so on: a look at each tick would see one of both.
        for ms in (0_u64..3000).step_by(20) {
            let now = Nanos::from_millis(ms);
            let full = (ms / 20).is_multiple_of(2);
            kernel.lock().unwrap().queues[0].1.length = if full { 100.0 } else { 0.0 };
            if ms.is_multiple_of(100) {
                interfaces.tick(now);
            } else {
                interfaces.sample(now);
            }
        }
        let now = Nanos::from_millis(2980);
        let seen = interfaces.queue(now).unwrap();
        assert!((seen.value.length - 50.0).abs() < 2.0, "{seen:?}");
        assert_eq!(seen.age, Nanos::ZERO);
        assert!(interfaces.recent[&1].queue.len() <= 55);
        // Closer than 5 ms: not asked again.
        let asked = kernel.lock().unwrap().asked;
        interfaces.sample(Nanos::from_millis(2983));
        assert_eq!(kernel.lock().unwrap().asked, asked);
    }

    #[test]
    fn the_fullest_counts_and_bytes_are_summed() {
        let (mut interfaces, kernel) = watched();
        {
            let mut kernel = kernel.lock().unwrap();
            kernel.interfaces.push(Interface { index: 2, ..Interface::default() });
            kernel.queues = vec![(1, queue(90.0, 1000.0)), (2, queue(40.0, 100.0))];
        }
        for tick in 0..20_u64 {
            for interface in &mut kernel.lock().unwrap().interfaces {
                interface.sent_bytes += 1000 * u64::from(interface.index);
            }
            interfaces.tick(Nanos::from_millis(100 * tick));
        }
        let now = Nanos::from_millis(1900);
        assert_eq!(interfaces.queue(now).unwrap().value, queue(40.0, 100.0));
        assert!((interfaces.sent(now).unwrap().value - 30_000.0).abs() < 1e-6);
        assert_eq!(interfaces.problem(now), None);
    }

    #[test]
    fn what_cannot_be_read_ages_and_then_is_nothing() {
        let (mut interfaces, kernel) = watched();
        assert!(interfaces.problem(Nanos::ZERO).unwrap().contains("none of the interfaces eth0"));
        interfaces.tick(Nanos::ZERO);
        interfaces.tick(Nanos::SECOND);
        assert!(interfaces.sent(Nanos::SECOND).is_some());
        kernel.lock().unwrap().broken = true;
        for second in 2..=30 {
            let now = Nanos::from_secs(second);
            interfaces.tick(now);
            assert_eq!(interfaces.problem(now).unwrap(), "broken");
            let age = Some(Nanos::from_secs(second - 1)).filter(|age| *age <= HOLD_MAX);
            assert_eq!(interfaces.queue(now).map(|r| r.age), age, "{second}");
        }
        assert_eq!(interfaces.sent(Nanos::from_secs(30)), None);
    }

    #[test]
    fn a_queue_that_is_taken_away_is_no_queue_any_more() {
        let (mut interfaces, kernel) = watched();
        {
            let mut kernel = kernel.lock().unwrap();
            kernel.interfaces.push(Interface { index: 2, ..Interface::default() });
            kernel.queues = vec![(1, queue(60.0, 100.0)), (2, queue(10.0, 100.0))];
        }
        interfaces.tick(Nanos::ZERO);
        assert_eq!(interfaces.queue(Nanos::ZERO).unwrap().value, queue(60.0, 100.0));
        kernel.lock().unwrap().queues.remove(0);
        let now = Nanos::from_millis(100);
        interfaces.tick(now);
        assert_eq!(interfaces.queue(now).unwrap().value, queue(10.0, 100.0));
    }

    #[test]
    fn an_interface_that_is_made_anew_does_not_send_backwards() {
        let (mut interfaces, kernel) = watched();
        kernel.lock().unwrap().interfaces[0].sent_bytes = 1_000_000;
        interfaces.tick(Nanos::ZERO);
        kernel.lock().unwrap().interfaces[0].sent_bytes = 5;
        interfaces.tick(Nanos::from_millis(100));
        assert_eq!(interfaces.sent(Nanos::from_millis(100)), None);
    }
}
