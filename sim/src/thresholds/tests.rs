// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The world of thresholds against arithmetic, and its parts by hand.

use super::*;
use tidegate_workload::Mixture;

const MS: fn(u64) -> Nanos = Nanos::from_millis;

const FEEDBACK: Feedback = Feedback {
    delay: Nanos::from_millis(10),
    jitter: Nanos::ZERO,
    loss: 0.0,
    every: 0,
    period: Nanos::SECOND,
};

/// The paper's server (45/s, 4.2 ms for "too busy") with one uncontrolled client and `n` controlled ones.
fn spec(rates: (f64, f64), n: usize, control: Option<Control>) -> Spec {
    let mut clients = vec![ClientSpec { rate: rates.0, priority: 0 }];
    clients.resize(n + 1, ClientSpec { rate: rates.1, priority: 1 });
    Spec {
        server: ServerSpec { work: Nanos(22_222_222), busy_work: Nanos(4_200_000), queue_max: 253 },
        clients,
        spread: Spread::Constant,
        schedules: Mixture::only(&CLASSIC),
        retries: 3,
        control,
        lead: Nanos::from_secs(5),
        warm: Nanos::from_secs(30),
        lasts: Nanos::from_secs(100),
        seed: 7,
    }
}

fn control(ladder: (u32, u32, Option<u32>), throttling: Throttling, gap_ms: u64) -> Control {
    let (abatement, onset, discard) = ladder;
    Control {
        ladders: vec![Ladder { abatement, onset, discard }],
        throttling,
        gaps: vec![MS(gap_ms)],
        rise: 30,
        monitor: None,
        feedback: FEEDBACK,
    }
}

/// Good requests and "too busy" share the processor: x·s + (λ − x)·b = 1 gives the throughput beyond
/// the capacity, and the CPU time used is that of both.
#[test]
fn without_control_the_cpu_is_shared_by_good_and_busy() {
    for (rate, n) in [(71.4, 2_usize), (99.6, 3)] {
        let report = run(&spec((30.0, (rate - 30.0) / n as f64), n, None)).unwrap();
        let expected = (1.0 - rate * 0.0042) / (0.022_222_222 - 0.0042);
        let good = report.served() as f64 / report.seconds;
        assert!((good - expected).abs() < 0.05, "{good} at {rate}, {expected} expected");
        let of_both = report.served() as f64 / 45.0 + report.busy() as f64 * 0.0042;
        assert!((of_both - report.cpu_s).abs() < 0.03, "{of_both} and {} s", report.cpu_s);
        assert!((252.0..=253.0).contains(&report.queue_mean), "{}", report.queue_mean);
    }
}

/// Below the capacity everybody is served, and queue and time in it obey Little's law.
#[test]
fn waiting_obeys_littles_law() {
    let mut calm = spec((30.0, 6.0), 2, None);
    calm.spread = Spread::Sessions { hurst: 0.8, slot: Nanos::SECOND };
    calm.lead = Nanos::ZERO;
    calm.warm = Nanos::ZERO;
    let report = run(&calm).unwrap();
    assert_eq!(report.busy(), 0);
    let waited: f64 =
        report.clients.iter().flat_map(|c| &c.response_s).map(|s| s - 0.022_222_222).sum();
    let queue = waited / report.seconds;
    // those in the queue at the end of the measurement are in one of the two only
    assert!((queue - report.queue_mean).abs() < 0.05 * queue.max(1.0), "{queue} {report:?}");
}

/// Dropped in line from 20 on: the queue never empties nor fills, so the server is used to its last cycle.
/// With 50 % of one client dropped, that one gets more. The uncontrolled client loses nothing.
#[test]
fn dropping_uses_the_server_fully() {
    let all = run(&spec((30.0, 20.7), 2, Some(control((10, 10, Some(20)), Throttling::None, 1))))
        .unwrap();
    assert!((all.served() as f64 / all.seconds - 45.0).abs() < 0.1, "{}", all.served());
    assert_eq!((all.busy(), all.clients[0].dropped), (0, 0));
    assert!(all.clients[1].dropped > 0 && all.queue_mean < 30.0);
    let share = Throttling::Drop(0.5, 1.0);
    let mut two = spec((30.0, 20.7), 2, Some(control((10, 20, None), share, 1)));
    two.clients[2].priority = 2;
    let two = run(&two).unwrap();
    let [_, half, full] = &two.clients[..] else { panic!("three clients") };
    assert!(half.response_s.len() > 2 * full.response_s.len(), "{half:?} {full:?}");
}

/// One client with one request, dropped for ever: SYNs at 0, 1.5, 4.5 and 10.5 s, and it gives up at
/// 22.5 s, as it would for any schedule without another SYN.
#[test]
fn a_dropped_client_sends_its_schedule() {
    // the uncontrolled client keeps the queue above the threshold
    let mut spec = spec((60.0, 0.5), 1, Some(control((1, 1, Some(1)), Throttling::None, 1)));
    (spec.warm, spec.lasts) = (Nanos::ZERO, Nanos::from_secs(60));
    let report = run(&spec).unwrap();
    let client = &report.clients[1];
    assert_eq!((client.response_s.len(), client.offered), (0, 30));
    // begun in the first 37.5 s of 60 give up within it: 18 or 19
    assert!((18..=19).contains(&client.gave_up), "{client:?}");
    // each of the four at every second second, from its time on
    let last = [0.0, 1.5, 4.5, 10.5].map(|after| (60.0 - after) / 2.0);
    let (least, most) = (last.map(f64::floor), last.map(f64::ceil));
    let sum = |each: [f64; 4]| each.iter().sum::<f64>() as u64;
    assert!((sum(least)..=sum(most)).contains(&client.dropped), "{client:?}");
}

/// Section 5.3: a gap of 150 ms brings 20 requests a second to 5, and 90 to the capacity.
#[test]
fn an_added_gap_brings_the_load_to_the_capacity() {
    let throttled = Some(control((75, 150, None), Throttling::AddedGap, 150));
    let report = run(&spec((30.0, 20.0), 3, throttled)).unwrap();
    assert_eq!(report.busy(), 0);
    for client in &report.clients[1..] {
        assert!(client.offered.abs_diff(500) <= 2, "{}", client.offered);
    }
    assert!((report.served() as f64 / report.seconds - 45.0).abs() < 0.1);
}

/// A control node keeps its gap for all clients together, has a bounded queue, and answers the rest.
#[test]
fn a_control_node_keeps_its_gap_and_its_bound() {
    let node = NodeBounds { shared: true, queue_max: 5 };
    let mut throttled = control((1, 1, None), Throttling::MinimumGap(node), 100);
    throttled.feedback.delay = Nanos::ZERO;
    // overloaded by the uncontrolled client alone: throttled for ever
    let report = run(&spec((60.0, 20.0), 2, Some(throttled))).unwrap();
    let sent: u64 = report.clients[1..].iter().map(|c| c.offered - c.refused).sum();
    assert!(sent.abs_diff(1000) <= 2, "10/s for 100 s: {sent}");
}

/// A higher priority is throttled later, and no less than a lower one.
#[test]
fn priorities_are_throttled_in_order() {
    let ladder = |abatement, onset| Ladder { abatement, onset, discard: None };
    let mut two = control((1, 1, None), Throttling::AddedGap, 150);
    two.ladders = vec![ladder(100, 150), ladder(50, 100)];
    let mut spec = spec((30.0, 20.0), 2, Some(two));
    spec.clients[2].priority = 2;
    let report = run(&spec).unwrap();
    let rate = |client: usize| report.clients[client].response_s.len() as f64 / report.seconds;
    assert!((rate(2) - 5.0).abs() < 0.2, "always throttled: {}", rate(2));
    assert!((rate(1) - 10.0).abs() < 0.7, "what is left: {}", rate(1));
    assert!((rate(0) - 30.0).abs() < 0.7, "all: {}", rate(0));
}

/// Harder severities have longer gaps; the queue stands where the gap of its severity fits the load.
#[test]
fn severities_have_their_gaps() {
    let mut three = control((50, 100, None), Throttling::AddedGap, 50);
    three.gaps = vec![MS(20), MS(50), MS(200)];
    three.rise = 50;
    let report = run(&spec((30.0, 20.0), 3, Some(three))).unwrap();
    // 72 and 60 requests a second are too many, 42 too few: between the onsets of the last two
    assert!((140.0..210.0).contains(&report.queue_mean), "{}", report.queue_mean);
    assert_eq!(report.busy(), 0);
}

/// The message to resume is lost: the client stays throttled, which the paper names as the weakness. A
/// late message that an earlier one has overtaken is not taken.
#[test]
fn what_is_lost_or_overtaken() {
    let mut lossy = control((75, 150, None), Throttling::AddedGap, 300);
    let whole = run(&spec((30.0, 20.0), 3, Some(lossy.clone()))).unwrap();
    lossy.feedback.loss = 0.9;
    let lost = run(&spec((30.0, 20.0), 3, Some(lossy))).unwrap();
    assert!(lost.lost > 0 && whole.lost == 0);
    assert!(lost.throttled != whole.throttled);
    let mut told = node::Told::default();
    assert!(told.take(2, [1; PRIORITIES]) && !told.take(1, [0; PRIORITIES]));
    assert_eq!(told.severity(7), 1);
}

/// With a monitor the level is that of the last second.
#[test]
fn a_monitor_is_late() {
    let ladder = (10, 10, Some(20));
    let in_line = control(ladder, Throttling::None, 1);
    let sampled = Control { monitor: Some(Nanos::SECOND), ..in_line.clone() };
    let run = |control| run(&spec((30.0, 20.7), 2, Some(control))).unwrap();
    let (in_line, sampled) = (run(in_line), run(sampled));
    assert!(
        sampled.queue_mean > 1.2 * in_line.queue_mean,
        "{} {}",
        sampled.queue_mean,
        in_line.queue_mean
    );
    assert!(sampled.cpu_s <= in_line.cpu_s);
}

/// The same seed gives the same run, another seed another one.
#[test]
fn a_seed_is_a_run() {
    let throttled = || Some(control((75, 150, Some(200)), Throttling::AddedGap, 50));
    let mut one = spec((30.0, 20.0), 3, throttled());
    one.spread = Spread::Sessions { hurst: 0.8, slot: Nanos::SECOND };
    let mut other = one.clone();
    other.seed += 1;
    assert_eq!(run(&one), run(&one));
    assert_ne!(run(&one), run(&other));
}

/// What is out of range is refused, and named.
#[test]
fn specs_are_checked() {
    let refused = |change: fn(&mut Spec)| {
        let mut spec =
            spec((30.0, 20.0), 3, Some(control((75, 150, None), Throttling::AddedGap, 50)));
        change(&mut spec);
        run(&spec).unwrap_err()
    };
    assert!(refused(|s| s.clients[0].rate = 1e9).contains("requests per second"));
    assert!(refused(|s| s.clients[1].priority = 8).contains("priority"));
    assert!(
        refused(|s| s.control.as_mut().unwrap().ladders[0].abatement = 151).contains("abatement")
    );
    assert!(refused(|s| s.control.as_mut().unwrap().gaps.clear()).contains("severities"));
    assert!(refused(|s| s.control.as_mut().unwrap().feedback.loss = 2.0).contains("loss"));
}

/// Three control nodes that the server sends remote limits to; nobody else sends.
fn limited(relay: Feedback, remote: RemoteLimits) -> Spec {
    let mut limits = control((5, 20, None), Throttling::Remote(remote), 1);
    limits.feedback = relay;
    spec((0.0, 33.2), 3, Some(limits))
}

const REMOTE: RemoteLimits = RemoteLimits {
    own: 0.95,
    validity: Nanos::from_millis(500),
    min_rate: 1.0,
    cut: None,
    forged: 0,
};

/// With remote limits the nodes pass what the server can take; a third of the messages lost changes little,
/// and nothing that a forger says is believed.
#[test]
fn remote_limits_keep_the_server_at_its_capacity() {
    for loss in [0.0, 0.3] {
        let relay = Feedback { loss, ..FEEDBACK };
        let report = run(&limited(relay, RemoteLimits { forged: 20, ..REMOTE })).unwrap();
        let remote = report.remote.clone().unwrap();
        let good = report.served() as f64 / report.seconds;
        assert!(good > 0.95 * 45.0 && remote.limit_variation < 0.1, "{good} {remote:?}");
        assert!(remote.forged > 60_000 && remote.forged_taken == 0, "{remote:?}");
        assert!(remote.least_rate >= 1.0 && remote.open.is_none(), "{remote:?}");
    }
}

/// A cut link: the limit opens in steps after its validity, and is gone eight validities after the last
/// message.
#[test]
fn a_cut_link_opens_the_limits() {
    let cut = Some((Nanos::from_secs(20), Nanos::from_secs(30)));
    let report = run(&limited(FEEDBACK, RemoteLimits { cut, ..REMOTE })).unwrap();
    let remote = report.remote.unwrap();
    let (first, open) = (remote.first_step.unwrap(), remote.open.unwrap());
    assert!(first >= REMOTE.validity && first <= REMOTE.validity + Nanos::SECOND, "{first}");
    assert!(open >= Nanos(7 * REMOTE.validity.0) && open <= MS(8 * 500 + 100), "{open}");
}
