// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The record of an overload: what metrics and history say of it, also after a restart under a clock
//! that was set.

use crate::world::*;
use std::cell::RefCell;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidegate_api::protocol::Reply;
use tidegate_daemon::record::Books;
use tidegate_daemon::state::{Here, Store};
use tidegate_model::Mode;
use tidegate_model::limits::Cause;
use tidegate_model::record::{By, Event, What};
use tidegate_model::snapshot::{Snapshot, VerdictCount};
use tidegate_model::totals::{BucketTotals, ServiceTotals};
use tidegate_telemetry::points;
use tidegate_units::{Clock, ManualClock, Nanos};

/// A file that is written by another thread.
#[derive(Clone, Default)]
struct File(Arc<Mutex<(Option<Vec<u8>>, bool)>>);

impl Store for File {
    fn read(&mut self) -> io::Result<Option<Vec<u8>>> {
        Ok(self.0.lock().unwrap().0.clone())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut file = self.0.lock().unwrap();
        if file.1 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        file.0 = Some(bytes.to_vec());
        Ok(())
    }

    fn remove(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn here(&self) -> Here {
        Here::default()
    }
}

/// The time of day, by so much later than the time since the boot; it can be set.
#[derive(Clone)]
struct Day(Arc<ManualClock>, Arc<Mutex<Nanos>>);

impl Clock for Day {
    fn now(&self) -> Nanos {
        self.0.now() + *self.1.lock().unwrap()
    }
}

/// A process of the boot `boot`, on a clock that is `day` now.
fn process(file: &File, clock: &Arc<ManualClock>, boot: &str, day: Nanos) -> World {
    let later = Arc::new(Mutex::new(day.since(clock.now())));
    process_at(file, clock, boot, Day(Arc::clone(clock), later))
}

fn process_at(file: &File, clock: &Arc<ManualClock>, boot: &str, day: Day) -> World {
    process_of(ONE, file, clock, (boot, day))
}

fn process_of(
    config: &str,
    file: &File,
    clock: &Arc<ManualClock>,
    (boot, day): (&str, Day),
) -> World {
    let at_day = Arc::new(day);
    let books = Books {
        machine: String::new(),
        store: Some(Box::new(file.clone())),
        ledger: None,
        boot: boot.into(),
        up: Arc::clone(clock) as Arc<dyn Clock + Send + Sync>,
        day: at_day,
    };
    let mut world =
        World::with_books(config, None, FakePlane::default(), (Arc::clone(clock), None, books));
    world.memory.lock().unwrap().totals = Some(ServiceTotals::default());
    world.owner.join_peers();
    world
}

fn events(world: &World) -> Vec<Event> {
    let Reply::History { events, .. } = world.owner.history() else { panic!() };
    events
}

/// Ticks in which `came` arrive each, and as many but for `refused` are served in 80 ms.
fn ticks(world: &mut World, ticks: u32, came: u64, refused: u64) {
    for _ in 0..ticks {
        {
            let mut memory = world.memory.lock().unwrap();
            let totals = memory.totals.get_or_insert_default();
            totals.offered += came;
            totals.admitted += came - refused;
            totals.refused += refused;
            (refused..came).for_each(|_| totals.first_byte.record(Nanos::from_millis(80)));
            let refused = totals.refused;
            let verdict = |verdict: &str, reason: &str, count| VerdictCount {
                class: "default".into(),
                verdict: verdict.into(),
                reason: reason.into(),
                count,
                ..VerdictCount::default()
            };
            memory.verdicts = vec![
                verdict("admit", "token", 5),
                verdict("reject", "rate", refused - refused / 4),
                verdict("drop", "waiting", refused / 4),
            ];
        }
        world.tick(Some(came));
    }
}

#[test]
fn an_overload_is_remembered_with_cause_and_figures_over_a_restart_under_another_clock() {
    let (file, clock) = (File::default(), Arc::new(ManualClock::default()));
    clock.advance(Nanos::from_secs(1000));
    let day = Nanos::from_secs(1_800_000_000);
    let later = Arc::new(Mutex::new(day.since(clock.now())));
    let mut world = process_at(&file, &clock, "boot", Day(clock.clone(), later.clone()));
    ticks(&mut world, 20, 10, 0);
    ticks(&mut world, 600, 1000, 600);
    ticks(&mut world, 60, 10, 0);
    let sums = world.snapshot().services[0].sums.clone();
    assert_eq!((sums.episodes, sums.shedding[0].time), (1, Nanos::from_secs(60)));
    let told = events(&world);
    let [
        _,
        Event { what: What::SheddingBegan(began), .. },
        Event { what: What::SheddingEnded(ended), .. },
    ] = &told[..]
    else {
        panic!("{told:?}")
    };
    assert_eq!(began.episode.cause, Cause::Reference);
    assert_eq!((ended.lasted, ended.cut), (Nanos::from_secs(60), false));
    let outcome = &ended.outcome;
    assert_eq!((outcome.offered, outcome.refused, outcome.completed), (600_000, 360_000, 240_000));
    let by: Vec<(&str, u64)> = outcome.refused_by.iter().map(|r| (&*r.reason, r.count)).collect();
    assert_eq!(by, [("rate", 270_000), ("waiting", 90_000)]);
    for quantile in [outcome.p50, outcome.p99] {
        assert!(quantile.is_some_and(|q| (q.as_millis_f64() / 80.0 - 1.0).abs() < 0.07));
    }
    let words = ended_sentence(&told);
    for part in
        ["shop: shedding ended after 60.00 s", "rate 270000", "p50 79.7 ms", "had begun because"]
    {
        assert!(words.contains(part), "{part}: {words}");
    }
    // A day in which the clock is set again and again, by up to a day.
    let until = clock.now();
    for step in [86_400, 3600, 1_000_000, 5] {
        *later.lock().unwrap() = Nanos::from_secs(1_799_000_000 + step);
        clock.advance(Nanos::from_secs(21_600));
        ticks(&mut world, 1, 10, 0);
        assert_eq!(events(&world).len(), told.len(), "nothing happened");
    }
    // The process is killed, and the clock was set back by a day and five seconds.
    world.settle();
    let set = day.since(Nanos::from_secs(5));
    let later = process(&file, &clock, "boot", set);
    let again = events(&later);
    assert_eq!(again.len(), 4, "{again:?}");
    assert_eq!(again[1].what, told[1].what);
    assert_eq!(again[2].what, told[2].what);
    let span = again[2].at.unix.since(again[1].at.unix);
    assert_eq!(span, Nanos::from_secs(60));
    let ago = clock.now().since(until) + Nanos::from_secs(6);
    assert_eq!(again[2].at.unix, set.since(ago), "by the clock as it is now");
    // Of another boot only the time of day is known.
    let booted = Arc::new(ManualClock::default());
    let next = events(&process(&file, &booted, "next", Nanos::SECOND));
    assert_eq!(next[2].at.unix, told[2].at.unix);
    let numbers: Vec<u64> = next.iter().map(|event| event.number).collect();
    assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
}

fn ended_sentence(events: &[Event]) -> String {
    let ended = events.iter().find(|event| matches!(event.what, What::SheddingEnded(_)));
    ended.unwrap().what.sentence()
}

/// A log in memory, an object of JSON a line.
#[derive(Clone, Debug, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

/// The log of the thread that writes, if it keeps one.
#[derive(Clone, Default)]
struct OfThread(Option<Log>);

thread_local! {
    static LOG: RefCell<OfThread> = RefCell::default();
}

impl OfThread {
    fn get() -> Self {
        LOG.with_borrow(Clone::clone)
    }
}

impl io::Write for OfThread {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Self(Some(Log(log))) = self {
            log.lock().unwrap().extend_from_slice(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// What of `shed.` stands in the lines about this.
    fn lines(&self, event: &str) -> Vec<serde_json::Value> {
        let bytes = self.0.lock().unwrap();
        let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let objects = lines.map(|line| serde_json::from_slice(line).unwrap());
        objects.filter(|object: &serde_json::Value| object["shed.event"] == event).collect()
    }
}

#[test]
fn begin_and_end_stand_in_the_log_with_cause_and_figures() {
    // For all threads: one for this thread alone misses an event whose place in the code another thread was the
    // first to pass, at that moment.
    let lines = tracing_subscriber::fmt().json().flatten_event(true).with_writer(OfThread::get);
    tracing::subscriber::set_global_default(lines.finish()).unwrap();
    let log = Log::default();
    LOG.set(OfThread(Some(log.clone())));
    let (file, clock) = (File::default(), Arc::new(ManualClock::default()));
    clock.advance(Nanos::from_secs(1000));
    let mut world = process(&file, &clock, "boot", Nanos::from_secs(5000));
    ticks(&mut world, 20, 10, 0);
    ticks(&mut world, 50, 1000, 600);
    ticks(&mut world, 60, 10, 0);
    let ([began], [ended]) = (&log.lines("shedding-began")[..], &log.lines("shedding-ended")[..])
    else {
        panic!("{log:?}")
    };
    for (line, level) in [(began, "WARN"), (ended, "INFO")] {
        assert_eq!((&line["level"], &line["shed.service"]), (&level.into(), &"shop".into()));
        assert_eq!(
            (&line["shed.cause"], &line["shed.mode"]),
            (&"reference".into(), &"enforce".into())
        );
        assert!(line["message"].as_str().is_some_and(|said| said.starts_with("shop: shedding ")));
        assert_eq!(line.get("shed.bucket"), None);
    }
    let number = |line: &serde_json::Value, name: &str| line[name].as_f64();
    assert!(number(began, "shed.offered_per_second").is_some_and(|rate| rate > 0.0), "{began}");
    assert_eq!(number(ended, "shed.lasted_s"), Some(5.0));
    assert_eq!(
        (ended["shed.offered"].as_u64(), ended["shed.refused"].as_u64()),
        (Some(50_000), Some(30_000))
    );
    assert_eq!(ended["shed.refused_by"], "rate 22500, waiting 7500");
    assert_eq!(began.get("shed.refused_by"), None);
    assert!(
        number(ended, "shed.p99_s").is_some_and(|p99| (p99 / 0.08 - 1.0).abs() < 0.07),
        "{ended}"
    );
}

#[test]
fn what_an_operator_does_is_remembered() {
    let mut world = World::new(ONE);
    world.tick(Some(10));
    world.owner.set_mode("shop", Mode::Shadow).unwrap();
    world.owner.release(true).unwrap();
    world.owner.release(false).unwrap();
    // Past the daemon, in what is pinned.
    world.memory.lock().unwrap().released = true;
    world.tick(Some(10));
    let told: Vec<What> = events(&world).into_iter().map(|event| event.what).skip(1).collect();
    let release = |on, by| What::Release { on, lasts: None, by };
    let mode = What::Mode {
        service: "shop".into(),
        mode: Mode::Shadow,
        percent: None,
        before: Mode::Enforce,
        lasts: None,
        by: By::Operator,
    };
    let (operator, pins) = (By::Operator, By::Pins);
    let expected = [mode, release(true, operator), release(false, operator), release(true, pins)];
    assert_eq!(told, expected);
}

#[test]
fn a_stop_and_a_take_over_in_an_overload_say_so() {
    for kept in [true, false] {
        let (file, clock) = (File::default(), Arc::new(ManualClock::default()));
        clock.advance(Nanos::from_secs(1000));
        let mut world = process(&file, &clock, "boot", Nanos::from_secs(5000));
        ticks(&mut world, 20, 1000, 600);
        if kept {
            world.owner.keep_at_stop();
        } else {
            world.owner.detach().unwrap();
        }
        let next = events(&process(&file, &clock, "boot", Nanos::from_secs(5000)));
        let cut = next.iter().find_map(|event| match &event.what {
            What::SheddingEnded(ended) => Some((ended.cut, ended.lasted)),
            _ => None,
        });
        assert_eq!(cut, Some((true, Nanos::from_secs(2))), "{next:?}");
        assert!(next.iter().any(|event| event.what == What::Stopped { kept }), "{next:?}");
    }
}

#[test]
fn a_full_disk_is_a_warning_and_costs_no_event() {
    let (file, clock) = (File::default(), Arc::new(ManualClock::default()));
    clock.advance(Nanos::from_secs(1000));
    file.0.lock().unwrap().1 = true;
    let mut world = process(&file, &clock, "boot", Nanos::from_secs(5000));
    wait_for(|| {
        ticks(&mut world, 11, 10, 0);
        world.warns("history: cannot be written")
    });
    file.0.lock().unwrap().1 = false;
    wait_for(|| {
        ticks(&mut world, 11, 10, 0);
        file.0.lock().unwrap().0.is_some()
    });
    // A file that is damaged costs what is damaged, and says so.
    let bytes = file.0.lock().unwrap().0.clone().unwrap();
    // Another file: the thread of the process before may still write to its own.
    let damaged = File(Arc::new(Mutex::new((Some([&bytes[..], b"nonsense\n"].concat()), false))));
    let mut next = process(&damaged, &clock, "boot", Nanos::from_secs(5000));
    assert_eq!(events(&next).len(), 2);
    next.tick(Some(10));
    assert!(next.warns("history: 1 lines of it are damaged"));
}

/// Another thread has to come to it.
fn wait_for(mut condition: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if condition() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("it did not happen within 5 s");
}

/// The clock of the day is set by a day, forth and back, while the process runs: what is decided and
/// what is remembered is as it would be without.
#[test]
fn a_clock_that_is_set_while_it_runs_changes_nothing() {
    let day = Nanos::from_secs(1_800_000_000);
    let step = Nanos::from_secs(86_400);
    let course = |steps: bool| {
        let (file, clock) = (File::default(), Arc::new(ManualClock::default()));
        clock.advance(Nanos::from_secs(1000));
        let later = Arc::new(Mutex::new(day.since(clock.now())));
        let of_day = Day(Arc::clone(&clock), Arc::clone(&later));
        let mut world = process_at(&file, &clock, "boot", of_day);
        let set = |forth: bool| {
            let mut later = later.lock().unwrap();
            if steps {
                *later = if forth { *later + step } else { later.since(step) };
            }
        };
        ticks(&mut world, 20, 10, 0);
        set(true);
        ticks(&mut world, 100, 1000, 600);
        set(false);
        set(false);
        ticks(&mut world, 100, 1000, 600);
        set(true);
        ticks(&mut world, 60, 10, 0);
        let service = world.snapshot().services[0].clone();
        (events(&world), service.sums, service.limits)
    };
    let (set, left) = (course(true), course(false));
    assert_eq!(set, left);
    assert_eq!(left.1.episodes, 1);
    assert_eq!(left.0.len(), 3, "{:?}", left.0);
}

/// Whoever is killed in an overload leaves a begin without an end.
#[test]
fn a_kill_in_an_overload_ends_its_episode_once() {
    let (file, clock) = (File::default(), Arc::new(ManualClock::default()));
    clock.advance(Nanos::from_secs(1000));
    let mut world = process(&file, &clock, "boot", Nanos::from_secs(5000));
    ticks(&mut world, 20, 10, 0);
    ticks(&mut world, 50, 1000, 600);
    world.settle();
    clock.advance(Nanos::from_secs(4));
    let mut next = process(&file, &clock, "boot", Nanos::from_secs(5009));
    ticks(&mut next, 50, 1000, 600);
    ticks(&mut next, 60, 10, 0);
    next.settle();
    let after = process(&file, &clock, "boot", Nanos::from_secs(5020));
    let told = events(&after);
    let spans = |event: &Event| match &event.what {
        What::SheddingBegan(_) => Some(None),
        What::SheddingEnded(ended) => Some(Some((ended.cut, ended.killed, ended.lasted))),
        _ => None,
    };
    let spans: Vec<_> = told.iter().filter_map(spans).collect();
    let (killed, whole) = (Nanos::from_secs(9), Nanos::from_secs(5));
    let expected = [None, Some((true, true, killed)), None, Some((false, false, whole))];
    assert_eq!(spans, expected, "{told:?}");
    assert!(told[2].what.sentence().contains("ended without a word within 9.00 s"), "{told:?}");
    assert!(matches!(told[3].what, What::Started { .. }), "{told:?}");
}

/// A service goes in the middle of an overload: that is why its episode ends, and the next process does
/// not take its begin for one of a process that was killed.
#[test]
fn a_service_that_a_reload_removes_ends_its_episode() {
    let (file, clock) = (File::default(), Arc::new(ManualClock::default()));
    clock.advance(Nanos::from_secs(1000));
    let mut world = process(&file, &clock, "boot", Nanos::from_secs(5000));
    ticks(&mut world, 20, 10, 0);
    ticks(&mut world, 50, 1000, 600);
    let dir = tempfile::tempdir().unwrap();
    let other = ONE.replace("shop:", "other:");
    world.owner.reload(&crate::world::file(&dir, &other), &registry(), &Ok).unwrap();
    world.settle();
    let after = process(&file, &clock, "boot", Nanos::from_secs(5020));
    let told = events(&after);
    let ends = told.iter().filter_map(|event| match &event.what {
        What::SheddingEnded(ended) => Some(ended),
        _ => None,
    });
    let ends: Vec<_> = ends.collect();
    let [ended] = ends[..] else { panic!("{told:?}") };
    assert_eq!((ended.removed, ended.cut, ended.killed), (true, true, false));
    assert_eq!((ended.lasted, ended.outcome.refused), (Nanos::from_secs(5), 30_000));
    let words = What::SheddingEnded(ended.clone()).sentence();
    assert!(words.contains("the configuration has it no more, after 5.00 s: "), "{words}");
}

const TWO_BUCKETS: &str = "
interfaces: [{name: lo}]
services:
  shop:
    mode: enforce
    listen: ['*:80']
    requests:
      buckets: {a: {resource: cpu}, b: {resource: bandwidth}}
      rules: [{path: /a, bucket: a}, {path: /b, bucket: b}]
";

/// A reload gives two buckets each other's place in the middle of an overload. The dataplane counts on for
/// each, and so does the record.
#[test]
fn buckets_that_change_places_keep_their_figures() {
    let (file, clock) = (File::default(), Arc::new(ManualClock::default()));
    clock.advance(Nanos::from_secs(1000));
    let later = Arc::new(Mutex::new(Nanos::from_secs(5000)));
    let mut world = process_of(TWO_BUCKETS, &file, &clock, ("boot", Day(clock.clone(), later)));
    // Of a many come and half are refused, of b few come.
    let (mut a, mut b) = (BucketTotals::default(), BucketTotals::default());
    b.offered[1] = 1_000_000;
    let mut go = |world: &mut World, swapped: bool, (ticks, refused): (u32, u64)| {
        for _ in 0..ticks {
            a.offered[1] += 100;
            a.refused[1] += refused;
            b.offered[1] += 1;
            let (mut buckets, mut each) = (vec![a.clone(), b.clone()], vec![refused, 0]);
            if swapped {
                buckets.reverse();
                each.reverse();
            }
            let mut memory = world.memory.lock().unwrap();
            memory.totals.get_or_insert_default().buckets = buckets;
            memory.bucket_refused = each;
            drop(memory);
            world.tick(Some(100));
        }
    };
    go(&mut world, false, (20, 0));
    go(&mut world, false, (30, 50));
    let dir = tempfile::tempdir().unwrap();
    let swapped = TWO_BUCKETS.replace(
        "{a: {resource: cpu}, b: {resource: bandwidth}}",
        "{b: {resource: bandwidth}, a: {resource: cpu}}",
    );
    world.owner.reload(&crate::world::file(&dir, &swapped), &registry(), &Ok).unwrap();
    // Before anything is read again, each name has its own counts.
    let shown = world.snapshot().services[0].clone();
    let names = shown.requests.unwrap().buckets.into_iter().map(|bucket| bucket.name);
    let offered = shown.totals.unwrap().buckets.into_iter().map(|bucket| bucket.offered[1]);
    let shown_as: Vec<(String, u64)> = names.zip(offered).take(2).collect();
    assert_eq!(shown_as, [("b".into(), 1_000_050), ("a".into(), 5_000)]);
    assert!(shown.signals.buckets.is_empty(), "sensed in the order of before");
    go(&mut world, true, (30, 50));
    go(&mut world, true, (60, 0));
    let told = events(&world);
    let ended = told.iter().filter_map(|event| match &event.what {
        What::SheddingEnded(ended) => Some(ended),
        _ => None,
    });
    let ended: Vec<_> = ended.collect();
    let [ended] = ended[..] else { panic!("{told:?}") };
    let outcome = &ended.outcome;
    assert_eq!(ended.episode.bucket.as_deref(), Some("a"));
    assert_eq!((outcome.offered, outcome.refused), (6_000, 3_000), "{outcome:?}");
}

/// A limit that changes between two scrapes: what is drawn of scrapes 15 s apart is its mean over all ticks,
/// and for how long there was one. The gauge shows a tenth of them.
#[test]
fn the_mean_limit_is_drawn_from_scrapes_15_s_apart() {
    let (file, clock) = (File::default(), Arc::new(ManualClock::default()));
    clock.advance(Nanos::from_secs(1000));
    let mut world = process(&file, &clock, "boot", Nanos::from_secs(5000));
    let value = |snapshot: &Snapshot, name: &str, level: Option<&str>| {
        let points = points(snapshot).into_iter().filter(|point| point.name == name);
        let of =
            |label: Option<&String>| level.is_none_or(|level| label.is_some_and(|l| l == level));
        points.filter(|point| of(point.labels.get("level"))).map(|point| point.value).sum::<f64>()
    };
    ticks(&mut world, 1, 0, 0);
    let mut before = world.snapshot();
    for _ in 0..3 {
        // 5 s without a limit, and 10 s with one of 100 and, in each tenth tick, of 400.
        ticks(&mut world, 50, 0, 0);
        for _ in 0..10 {
            ticks(&mut world, 9, 100, 0);
            ticks(&mut world, 1, 400, 0);
        }
        let now = world.snapshot();
        let grown = |name, level| value(&now, name, level) - value(&before, name, level);
        let allowed = grown("tidegate_service_limit_allowed_syns_total", None);
        let known = "tidegate_service_level_known_seconds_total";
        let in_force = grown(known, Some("limit_rate"));
        assert!((in_force - 10.0).abs() < 1e-6, "{in_force}");
        assert!((allowed / in_force - 130.0).abs() < 1e-6, "{allowed} in {in_force} s");
        assert_eq!(value(&now, "tidegate_service_limit_rate_per_second", None), 400.0);
        before = now;
    }
}
