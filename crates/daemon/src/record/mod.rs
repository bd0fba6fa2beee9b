// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The record: what happened to services, for whoever looks later. Sums over time ([`Meter`]) are
//! for metrics, events ([`History`]) for `tidegate history` and the log. Nothing is decided by any
//! of it.

mod episodes;
mod history;
mod ledger;
mod log;
mod meter;
mod writer;

use crate::plane::Counted;
use crate::state::Store;
use episodes::{Accounts, Baseline, Cut, interrupted};
pub use history::EVENTS_MAX;
use history::History;
pub use ledger::BYTES_MAX as SHADOW_BYTES_MAX;
use ledger::Ledger;
pub(crate) use ledger::Shadowed;
use meter::{Look, Meter, Turn, levels_of_bucket, levels_of_service};
use std::collections::BTreeMap;
use std::sync::Arc;
use tidegate_config::{Config, ServiceConfig};
use tidegate_model::Mode;
use tidegate_model::limits::ServiceLimits;
use tidegate_model::record::{Event, Moment, Sums, What};
use tidegate_model::shadow::{ShadowRow, ShadowSums};
use tidegate_model::totals::ServiceTotals;
use tidegate_sense::Sensed;
use tidegate_units::{Clock, Nanos};
use writer::Paper;

/// A service, or one of its request buckets.
type Subject = (String, Option<String>);

/// Subject of warnings about the file of the history.
const HISTORY: &str = "history";
/// Subject of warnings about the file of what would have been refused in shadow.
const LEDGER: &str = "shadow ledger";

fn faults<const N: usize>(
    done: [(&'static str, Result<(), String>); N],
) -> Vec<(&'static str, String)> {
    done.into_iter().filter_map(|(subject, done)| Some((subject, done.err()?))).collect()
}

/// What a record is made of.
pub struct Books {
    /// Where events outlive the process; `None`: nowhere.
    pub store: Option<Box<dyn Store + Send>>,
    /// The same of what would have been refused in shadow.
    pub ledger: Option<Box<dyn Store + Send>>,
    /// The id of this boot.
    pub boot: String,
    /// A checksum of this machine's id; empty: it has none.
    pub machine: String,
    /// Time since the boot.
    pub up: Arc<dyn Clock + Send + Sync>,
    /// The time of day.
    pub day: Arc<dyn Clock + Send + Sync>,
}

/// What a tick showed of all services, in the order of the configuration.
pub(crate) struct Seen<'a> {
    pub(crate) now: Nanos,
    pub(crate) config: &'a Config,
    pub(crate) released: bool,
    pub(crate) sensed: &'a [Sensed],
    pub(crate) limits: &'a [ServiceLimits],
    /// As they were last read.
    pub(crate) counts: &'a Counted,
    /// Services whose tightest limit is a peer's.
    pub(crate) remote: &'a dyn Fn(usize) -> bool,
}

/// See the head of this file.
pub(crate) struct Record {
    books: Books,
    meters: BTreeMap<Subject, Meter>,
    /// As they were last read, by name of the service; buckets in the order of `order`.
    totals: BTreeMap<String, ServiceTotals>,
    /// The names of the buckets of each service, in the order of the configuration in force.
    order: BTreeMap<String, Vec<String>>,
    /// What was counted when the episodes that are on began.
    open: BTreeMap<Subject, Baseline>,
    history: History,
    file: Paper,
    ledger: Ledger,
    ledger_file: Paper,
}

impl Record {
    /// One that goes on where the files end; and what is wrong with those, by subject.
    pub(crate) fn new(mut books: Books) -> (Self, Vec<(&'static str, String)>) {
        let mut faults = Vec::new();
        let mut file = Paper::new(books.store.take());
        let mut ledger_file = Paper::new(books.ledger.take());
        let damaged = |lost: usize| format!("{lost} lines of it are damaged, and left out");
        let mut history = History::default();
        match file.read() {
            Ok(Some(bytes)) if History::is_foreign(&bytes) => {
                faults.push((HISTORY, file.set_aside("is of another version, or no history")));
            }
            Ok(Some(bytes)) => {
                let lost;
                (history, lost) = History::decode(&bytes);
                faults.extend((lost > 0).then(|| (HISTORY, damaged(lost))));
            }
            Err(error) => faults.push((HISTORY, file.set_aside(&error))),
            Ok(None) => {}
        }
        let machine = &books.machine;
        let mut ledger = Ledger::new(machine);
        match ledger_file.read() {
            Ok(Some(bytes)) if Ledger::is_foreign(&bytes, machine) => {
                let what = "is of another version or machine, or no ledger";
                faults.push((LEDGER, ledger_file.set_aside(what)));
            }
            Ok(Some(bytes)) => {
                let lost;
                (ledger, lost) = Ledger::decode(&bytes, machine);
                faults.extend((lost > 0).then(|| (LEDGER, damaged(lost))));
            }
            Err(error) => faults.push((LEDGER, ledger_file.set_aside(&error))),
            Ok(None) => {}
        }
        let mut record = Self {
            books,
            meters: BTreeMap::new(),
            totals: BTreeMap::new(),
            order: BTreeMap::new(),
            open: BTreeMap::new(),
            history,
            file,
            ledger,
            ledger_file,
        };
        record.end_interrupted();
        (record, faults)
    }

    /// Ends what a process left open that was killed, so that nothing is doubled or goes on for ever.
    fn end_interrupted(&mut self) {
        for what in interrupted(&self.events(), &self.moment()) {
            self.note(what);
        }
    }

    /// Begins to write. To be called once the process is in charge and has given up its privileges.
    pub(crate) fn open(&mut self) -> Vec<(&'static str, String)> {
        let opened = [(HISTORY, self.file.open()), (LEDGER, self.ledger_file.open())];
        faults(opened)
    }

    /// The time of day.
    pub(crate) fn day(&self) -> Nanos {
        self.books.day.now()
    }

    /// This moment.
    pub(crate) fn moment(&self) -> Moment {
        let Books { boot, up, day, .. } = &self.books;
        Moment { boot: boot.clone(), up: up.now(), unix: day.now() }
    }

    /// Remembers what happens now.
    pub(crate) fn note(&mut self, what: What) {
        let at = self.moment();
        self.history.note(at, what);
    }

    /// Remembers all that has just happened.
    pub(crate) fn note_all(&mut self, all: Vec<What>) {
        all.into_iter().for_each(|what| self.note(what));
    }

    /// Remembers what happened a while ago.
    fn note_since(&mut self, ago: Nanos, what: What) {
        let now = self.moment();
        let at = Moment { up: now.up.since(ago), unix: now.unix.since(ago), ..now };
        self.history.note(at, what);
    }

    /// What is remembered, the oldest first, with times of day as of now.
    pub(crate) fn events(&self) -> Vec<Event> {
        self.history.events(&self.moment())
    }

    /// Takes a tick.
    pub(crate) fn see(&mut self, seen: &Seen<'_>) {
        let services = seen.config.services.iter().zip(seen.sensed).zip(seen.limits).enumerate();
        for (index, ((service, sensed), limits)) in services {
            let signals = &sensed.signals;
            let counts = signals.balance.counts.map(|r| r.value).unwrap_or_default();
            let look = Look {
                now: seen.now,
                period: signals.period,
                why: &limits.why,
                shadow: seen.released || service.mode == Mode::Shadow,
                remote: (seen.remote)(index),
                offered: counts.offered,
                refused: counts.refused,
            };
            let subject = (service.name.clone(), None);
            let levels = levels_of_service(signals, limits);
            self.meters.entry(subject.clone()).or_default().measure(signals.period, &levels);
            let verdicts = seen.counts.services.get(index).map_or(&[][..], |counts| counts);
            let accounts = Accounts::of_service(sensed, limits, verdicts);
            self.take(&look, subject, &accounts);
            let queue = signals.queue.accept.and_then(|r| r.within(meter::AGE_MAX));
            self.ledger.look(&service.name, queue);
            self.see_buckets(seen, service, (sensed, limits));
            if let Some(totals) = &sensed.totals {
                self.totals.insert(service.name.clone(), totals.clone());
            }
        }
    }

    fn see_buckets(
        &mut self,
        seen: &Seen<'_>,
        service: &ServiceConfig,
        (sensed, limits): (&Sensed, &ServiceLimits),
    ) {
        let Some(requests) = &service.requests else { return };
        let shadow = seen.released || requests.mode_within(service.mode) == Mode::Shadow;
        let signals = &sensed.signals;
        let buckets = requests.buckets.iter().zip(&signals.buckets).zip(&limits.buckets);
        for (place, ((bucket, of_bucket), limits)) in buckets.enumerate() {
            let counts = of_bucket.counts.map(|r| r.value).unwrap_or_default();
            let look = Look {
                now: seen.now,
                period: signals.period,
                why: &limits.why,
                shadow,
                remote: false,
                offered: counts.offered.iter().sum(),
                refused: counts.refused.iter().sum(),
            };
            let subject = (service.name.clone(), Some(bucket.name.clone()));
            let levels = levels_of_bucket(of_bucket, limits);
            self.meters.entry(subject.clone()).or_default().measure(signals.period, &levels);
            let accounts = Accounts::of_bucket((sensed, of_bucket), limits, place);
            self.take(&look, subject, &accounts);
        }
    }

    /// One subject in one tick.
    fn take(&mut self, look: &Look<'_>, subject: Subject, accounts: &Accounts<'_>) {
        let meter = self.meters.entry(subject.clone()).or_default();
        let turn = meter.see(look);
        let lately = meter.lately();
        let on = meter.is_on(look.now);
        match turn {
            Some(Turn::Began(episode)) => {
                let baseline = Baseline::new(self.totals.get(&subject.0), accounts);
                let began = accounts.began(&subject, &episode, (look.why, lately));
                self.open.insert(subject.clone(), baseline);
                self.note_since(look.now.since(episode.began), began);
            }
            Some(Turn::Ended(episode)) => {
                let baseline = self.open.remove(&subject).unwrap_or_default();
                let ended = baseline.ended(&subject, &episode, Some(accounts.verdicts));
                self.note_since(look.now.since(episode.last), ended);
            }
            None => {}
        }
        if on && let Some(baseline) = self.open.get_mut(&subject) {
            baseline.keep(accounts);
        }
    }

    /// Gives the files to the threads that write, now and then. What could not be written the last time.
    pub(crate) fn write(&mut self, now: Nanos) -> Vec<(&'static str, String)> {
        let Self { history, file, ledger, ledger_file, .. } = self;
        faults([(HISTORY, file.write(now, history)), (LEDGER, ledger_file.write(now, ledger))])
    }

    /// Takes what was counted of the services that are in shadow.
    pub(crate) fn see_shadow(&mut self, shadowed: &Shadowed<'_>) {
        let at = self.moment();
        self.ledger.see(&at, shadowed, &self.totals);
    }

    /// The rows about a service, with what is not over yet.
    pub(crate) fn shadow_rows(&self, service: &str) -> Vec<ShadowRow> {
        self.ledger.rows(service)
    }

    /// What a service's time in shadow came to.
    pub(crate) fn shadow_sums(&self, service: &str) -> Option<ShadowSums> {
        self.ledger.sums(service)
    }

    /// The process ends, or another takes over: nothing is known from here on of what goes on.
    pub(crate) fn close(&mut self, now: Nanos) {
        self.cut(now, Cut::Process, |_| true);
        self.ledger.close();
    }

    /// Ends the episodes of these subjects.
    fn cut(&mut self, now: Nanos, by: Cut, these: impl Fn(&Subject) -> bool) {
        let mut cut = Vec::new();
        for (subject, meter) in self.meters.iter_mut().filter(|(subject, _)| these(subject)) {
            if let Some(Turn::Ended(episode)) = meter.end() {
                cut.push((subject.clone(), episode));
            }
        }
        for (subject, episode) in cut {
            let baseline = self.open.remove(&subject).unwrap_or_default();
            let ended = baseline.cut(&subject, &episode, by);
            self.note_since(now.since(episode.last), ended);
        }
    }

    /// Waits until all is written, not for long.
    pub(crate) fn flush(&mut self) {
        self.file.flush(&mut self.history);
        self.ledger_file.flush(&mut self.ledger);
    }

    /// Another configuration: what it does not have any more has ended, and is forgotten.
    pub(crate) fn follow(&mut self, config: &Config, now: Nanos) {
        let has = |(name, bucket): &Subject| {
            let service = config.services.iter().find(|service| service.name == *name);
            let buckets = service.and_then(|service| service.requests.as_ref());
            match bucket {
                None => service.is_some(),
                Some(bucket) => {
                    buckets.is_some_and(|r| r.buckets.iter().any(|b| b.name == *bucket))
                }
            }
        };
        // Else its begin would look as if the daemon had been killed then.
        self.cut(now, Cut::Removed, |subject| !has(subject));
        self.meters.retain(|subject, _| has(subject));
        self.open.retain(|subject, _| has(subject));
        self.totals.retain(|name, _| has(&(name.clone(), None)));
        self.order.retain(|name, _| has(&(name.clone(), None)));
        self.reorder(config);
        self.ledger.follow(config);
    }

    /// Gives the buckets the places that they have in another configuration: the dataplane counts on for
    /// a bucket that moves, and what is compared or shown until the next tick is the bucket's own.
    fn reorder(&mut self, config: &Config) {
        for service in &config.services {
            let buckets = service.requests.iter().flat_map(|requests| &requests.buckets);
            let names: Vec<String> = buckets.map(|bucket| bucket.name.clone()).collect();
            let before = self.order.insert(service.name.clone(), names.clone());
            let (Some(before), Some(totals)) = (before, self.totals.get_mut(&service.name)) else {
                continue;
            };
            let old = std::mem::take(&mut totals.buckets);
            let of = |name: &String| {
                let place = before.iter().position(|was| was == name);
                place.and_then(|place| old.get(place)).cloned().unwrap_or_default()
            };
            totals.buckets = names.iter().map(of).collect();
        }
    }

    /// What a service, or one of its buckets, went through.
    pub(crate) fn sums(&self, service: &str, bucket: Option<&str>) -> Sums {
        let subject = (service.to_owned(), bucket.map(str::to_owned));
        self.meters.get(&subject).map(|meter| meter.sums().clone()).unwrap_or_default()
    }

    /// The totals of a service as they were last read.
    pub(crate) fn totals(&self, service: &str) -> Option<&ServiceTotals> {
        self.totals.get(service)
    }
}
