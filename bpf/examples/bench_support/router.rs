// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Subjects of `cargo xtask bench router`: what a packet costs where a router measures, with a million connections in
//! its table and keys at random. Every packet is of another connection; the kernel counts the time of its run
//! (`kernel.bpf_stats_enabled`, some 20 ns of counting included, which `empty` has as well). The median of blocks is
//! taken: an interrupt within a run is no cost of it.

use super::frames::{ACK, SYN, Tuple, segment};
use super::random::SplitMix;
use super::requests::Counting;
use super::worker::{Subject, Subjects, median};
use anyhow::{Context, Result, ensure};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::rc::Rc;
use tidegate_bpf::testing::plans;
use tidegate_bpf::{ROUTER_SWEEPS, Router, RouterHooks};
use tidegate_model::Mode;
use tidegate_model::router::DestinationCounts;
use tidegate_policy::{Action, BucketSpec};
use tidegate_units::{Clock, MonotonicClock, Rate};

/// Packets of one block.
const BLOCK: u32 = 250;
/// Of the packets, so many must have been what their subject says: others met in one set of the table.
const MET: f64 = 0.9;
/// The initial sequence numbers of servers and clients.
const ISN: [u32; 2] = [1000, 7000];
/// Payload of a request, and of a segment of a response.
const PAYLOAD: [usize; 2] = [200, 1400];
/// Servers behind the router.
const SERVERS: u32 = 200;
/// Those that have a limit beside others that have none.
const LIMITED: u32 = 100;
/// Clients of full tables come from here on.
const STRANGERS: u32 = 1 << 24;

/// How much of everything.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Connections in the large table, and its places.
    pub connections: u32,
    pub places: u32,
    /// Connections of the small crowd, and places of the table that is full.
    pub few: u32,
    pub full: u32,
    /// Packets of one measurement: a multiple of [`BLOCK`].
    pub packets: u32,
}

impl Scale {
    /// For figures: a million, a quarter of the largest table.
    pub const FULL: Self =
        Self { connections: 1_000_000, places: 1 << 22, few: 1000, full: 1 << 16, packets: 8000 };
    /// For a test that only wants to see that it works.
    pub const SMOKE: Self =
        Self { connections: 2000, places: 1 << 14, few: 1000, full: 1 << 10, packets: BLOCK };
}

fn tuple(number: u32) -> Tuple {
    Tuple {
        src: Ipv4Addr::from(0x0a00_0000 | number >> 4),
        dst: Ipv4Addr::new(192, 0, 2, (number % SERVERS) as u8 + 1),
        sport: 1024 + (number & 15) as u16,
        dport: 80,
    }
}

/// A segment with so many bytes of payload; the length of the IP packet says so.
fn with_payload(tuple: &Tuple, numbers: [u32; 2], payload: usize) -> Vec<u8> {
    let mut bytes = segment(tuple, ACK, numbers[0], numbers[1]).to_vec();
    bytes[16..18].copy_from_slice(&(40 + payload as u16).to_be_bytes());
    bytes.resize(bytes.len() + payload, b'x');
    bytes
}

/// A router with connections.
struct Crowd {
    router: Router,
    hooks: RouterHooks,
    connections: u32,
    /// Exchanges of each so far.
    exchanges: Vec<u16>,
    random: SplitMix,
}

impl Crowd {
    /// So many that have completed their handshakes, in a table of so many places.
    fn new(connections: u32, places: u32) -> Result<Self> {
        let mut config = plans::router(&["192.0.2.0/24:80"]);
        (config.connections, config.destinations_max) = (places, 1024);
        let router = Router::load(&config)?;
        let hooks = router.hooks()?;
        let exchanges = vec![0; connections as usize];
        let crowd = Self { router, hooks, connections, exchanges, random: SplitMix(7) };
        for number in 0..connections {
            crowd.replies(number)?;
            crowd.hooks.give(false, &crowd.proof(number))?;
        }
        Ok(crowd)
    }

    fn replies(&self, number: u32) -> Result<()> {
        let syn_ack = segment(&tuple(number).reverse(), SYN | ACK, ISN[0], ISN[1] + 1);
        Ok(self.hooks.give(true, &syn_ack)?)
    }

    fn proof(&self, number: u32) -> Vec<u8> {
        segment(&tuple(number), ACK, ISN[1] + 1, ISN[0] + 1).to_vec()
    }

    /// What both sides have sent after so many exchanges.
    fn sent(&self, number: u32) -> [u32; 2] {
        let exchanges = u32::from(self.exchanges[number as usize]);
        [ISN[0] + 1 + exchanges * PAYLOAD[1] as u32, ISN[1] + 1 + exchanges * PAYLOAD[0] as u32]
    }

    fn request(&self, number: u32) -> Vec<u8> {
        let [server, client] = self.sent(number);
        with_payload(&tuple(number), [client, server], PAYLOAD[0])
    }

    fn response(&self, number: u32) -> Vec<u8> {
        let [server, client] = self.sent(number);
        with_payload(&tuple(number).reverse(), [server, client + PAYLOAD[0] as u32], PAYLOAD[1])
    }

    fn acknowledgement(&self, number: u32) -> Vec<u8> {
        let [server, client] = self.sent(number);
        let numbers = [client + PAYLOAD[0] as u32, server + PAYLOAD[1] as u32];
        segment(&tuple(number), ACK, numbers[0], numbers[1]).to_vec()
    }

    /// Gives these packets to one side; the median of the blocks' means, ns. `passes`: whether they do.
    fn give(&self, egress: bool, frames: &[Vec<u8>], passes: bool) -> Result<f64> {
        let mut means = Vec::new();
        for block in frames.chunks(BLOCK as usize) {
            let before = self.hooks.runs(egress)?;
            for frame in block {
                let passed = self.hooks.passes(egress, frame)?;
                ensure!(passed == passes, "a packet passed: {passed}");
            }
            let after = self.hooks.runs(egress)?;
            means.push((after.1 - before.1) as f64 / (after.0 - before.0) as f64);
        }
        median(means).context("no block")
    }

    /// SYNs that took a token of a limit.
    fn tokens(&self) -> Result<u64> {
        let of = |place| self.router.limited(place).context("no such place");
        (0..SERVERS as usize).map(|place| Ok(of(place)?.tokens)).sum()
    }

    fn counts(&self) -> Result<DestinationCounts> {
        let all = self.router.destinations()?;
        let sum =
            |sum: DestinationCounts,
             (_, _, one): (usize, std::net::SocketAddr, DestinationCounts)| {
                sum.with(one, u64::saturating_add)
            };
        Ok(all.into_iter().fold(DestinationCounts::default(), sum))
    }
}

/// Of so many packets as many as they say were counted as what they are.
fn check(what: &str, counted: u64, packets: usize) -> Result<()> {
    let met = counted as f64 / packets as f64;
    ensure!(met >= MET, "{:.0} % were counted as {what}", 100.0 * met);
    Ok(())
}

/// What is measured together, once a round.
type Measured = BTreeMap<&'static str, f64>;

/// Exchanges of connections at random: a request, the first segment of its response, its acknowledgement.
fn exchanges(crowd: &mut Crowd, names: [&'static str; 3], packets: u32) -> Result<Measured> {
    // Each connection once: with fewer connections there are fewer packets.
    let mut numbers = Vec::from_iter(0..crowd.connections);
    crowd.random.shuffle(&mut numbers);
    numbers.truncate(packets as usize);
    let before = crowd.counts()?;
    let frames = |make: &dyn Fn(u32) -> Vec<u8>| Vec::from_iter(numbers.iter().map(|n| make(*n)));
    let steps = [
        (false, frames(&|n| crowd.request(n))),
        (true, frames(&|n| crowd.response(n))),
        (false, frames(&|n| crowd.acknowledgement(n))),
    ];
    let mut measured = Measured::new();
    for (name, (egress, frames)) in names.into_iter().zip(&steps) {
        measured.insert(name, crowd.give(*egress, frames, true)?);
    }
    numbers.iter().for_each(|number| crowd.exchanges[*number as usize] += 1);
    let after = crowd.counts()?;
    check("begun", after.begun - before.begun, numbers.len())?;
    ensure!(after.delivered_bytes > before.delivered_bytes, "nothing was delivered");
    Ok(measured)
}

/// SYNs to a hundred servers, and to the others: block by block without a limit, and then the hundred have one each,
/// whose tokens last.
fn hundred(crowd: &mut Crowd, packets: u32) -> Result<Measured> {
    let mut means: BTreeMap<&'static str, Vec<f64>> = BTreeMap::new();
    // In so many numbers no round meets those of another: copies of a SYN take no token.
    let mut from = 2 * STRANGERS + crowd.random.below(1 << 27) as u32;
    let bucket = BucketSpec::new(Rate::per_second(1e9), 1_000_000, Action::Drop);
    let (before, mut taken) = (crowd.tokens()?, 0);
    for _ in 0..packets / BLOCK {
        for (limit, names) in [
            (None, ["own-0-syn", "own-0-syn-others"]),
            (Some(&bucket), ["own-100-syn", "own-100-syn-others"]),
        ] {
            for place in 0..LIMITED as usize {
                crowd.router.set_limit(place, limit)?;
            }
            crowd.router.renew(MonotonicClock.now(), Some(Mode::Enforce))?;
            let (first, rest): (Vec<u32>, Vec<u32>) =
                (from..from + 2 * BLOCK).partition(|number| number % SERVERS < LIMITED);
            from += 2 * BLOCK;
            taken += if limit.is_some() { first.len() } else { 0 };
            for (name, numbers) in names.into_iter().zip([first, rest]) {
                let syn = |number: &u32| segment(&tuple(*number), SYN, *number, 0).to_vec();
                let frames = Vec::from_iter(numbers.iter().map(syn));
                means.entry(name).or_default().push(crowd.give(false, &frames, true)?);
            }
        }
    }
    check("with a token", crowd.tokens()? - before, taken)?;
    let median_of = |(name, means)| Ok((name, median(means).context("no block")?));
    means.into_iter().map(median_of).collect()
}

/// New connections: SYNs without a limit and at one that is used up, and a sweep.
fn others(crowd: &mut Crowd, packets: u32) -> Result<Measured> {
    let mut measured = Measured::new();
    let arp = vec![vec![0; 60]; packets as usize];
    measured.insert("empty", crowd.give(false, &arp, true)?);
    // In so many numbers no round meets those of another: a copy of a SYN that passed passes.
    let first = crowd.random.below(1 << 27) as u32 + STRANGERS;
    let syn = |from: u32| {
        let all = from..from + packets;
        Vec::from_iter(all.map(|number| segment(&tuple(number), SYN, number, 0).to_vec()))
    };
    measured.insert("syn", crowd.give(false, &syn(first), true)?);
    let bucket = BucketSpec::new(Rate::per_second(0.001), 1, Action::Drop);
    for place in 0..SERVERS as usize {
        crowd.router.set_limit(place, Some(&bucket))?;
    }
    crowd.router.renew(MonotonicClock.now(), Some(Mode::Enforce))?;
    // The one token of each.
    for number in first + packets..first + packets + SERVERS {
        crowd.hooks.passes(false, &segment(&tuple(number), SYN, number, 0))?;
    }
    crowd.router.renew(MonotonicClock.now(), Some(Mode::Enforce))?;
    let refused = crowd.counts()?.refused;
    measured.insert("syn-refused", crowd.give(false, &syn(first + 2 * packets), false)?);
    check("refused", crowd.counts()?.refused - refused, packets as usize)?;
    for place in 0..SERVERS as usize {
        crowd.router.set_limit(place, None)?;
    }
    let before = crowd.router.sweep_runs()?;
    for _ in 0..ROUTER_SWEEPS {
        crowd.router.sweep()?;
    }
    let ns = (crowd.router.sweep_runs()?.1 - before.1) as f64;
    measured.insert("sweep", ns / crowd.router.connections().max(1) as f64);
    Ok(measured)
}

/// Acknowledgements that prove a handshake, and such as belong to no connection that is followed; of a table that is
/// full, or nearly empty.
fn strangers(crowd: &mut Crowd, names: [&'static str; 2], packets: u32) -> Result<Measured> {
    let first = STRANGERS + crowd.random.below(1 << 20) as u32;
    let mut measured = Measured::new();
    let unknown = first..first + packets;
    let frames = Vec::from_iter(unknown.map(|number| crowd.proof(number)));
    measured.insert(names[0], crowd.give(false, &frames, true)?);
    let mut opens = Vec::new();
    let admitted = crowd.counts()?.admitted;
    // A note is overwritten by those that come between it and its proof: block by block.
    for block in 0..packets / BLOCK {
        let from = first + packets + block * BLOCK;
        let numbers = Vec::from_iter(from..from + BLOCK);
        numbers.iter().try_for_each(|number| crowd.replies(*number))?;
        let frames = Vec::from_iter(numbers.iter().map(|number| crowd.proof(*number)));
        opens.push(crowd.give(false, &frames, true)?);
    }
    check("admitted", crowd.counts()?.admitted - admitted, packets as usize)?;
    measured.insert(names[1], median(opens).context("no block")?);
    Ok(measured)
}

type Make = Box<dyn Fn() -> Result<Crowd>>;
type Measure = Box<dyn Fn(&mut Crowd) -> Result<Measured>>;

/// A crowd that is made when it is needed first, and what is measured of it.
struct Play {
    make: Make,
    play: Measure,
    crowd: Option<Crowd>,
    measured: Measured,
}

struct One {
    play: Rc<RefCell<Play>>,
    name: &'static str,
    about: &'static str,
}

impl Subject for One {
    fn name(&self) -> &str {
        self.name
    }

    fn about(&self) -> &str {
        self.about
    }

    /// Who is asked first in a round measures all of its crowd; the others were measured with it.
    fn measure(&mut self) -> Result<f64> {
        let play = &mut *self.play.borrow_mut();
        if !play.measured.contains_key(self.name) {
            if play.crowd.is_none() {
                play.crowd = Some((play.make)()?);
            }
            let _counting = Counting::start()?;
            let crowd = play.crowd.as_mut().context("no crowd")?;
            play.measured = (play.play)(crowd)?;
        }
        play.measured.remove(self.name).context("it was not measured")
    }
}

/// All subjects.
pub fn subjects(scale: &Scale) -> Subjects {
    let Scale { connections, places, few, full, packets } = *scale;
    let mut subjects = Subjects::new();
    let mut add = |make: Make, play: Measure, named: &[(&'static str, &'static str)]| {
        let (crowd, measured) = (None, Measured::new());
        let play = Rc::new(RefCell::new(Play { make, play, crowd, measured }));
        for (name, about) in named {
            subjects.push(Box::new(One { play: Rc::clone(&play), name, about }));
        }
    };
    add(
        Box::new(move || Crowd::new(connections, places)),
        Box::new(move |crowd| {
            let names = ["client-request", "server-reply", "client-ack"];
            let mut measured = exchanges(crowd, names, packets)?;
            measured.extend(others(crowd, packets)?);
            Ok(measured)
        }),
        &[
            ("empty", "a frame that is not IP: it is looked at, and passes"),
            ("client-request", "a request of one of a million connections"),
            ("server-reply", "the first segment of its response"),
            ("client-ack", "its acknowledgement"),
            ("syn", "a SYN to a server without a limit"),
            ("syn-refused", "a SYN to a server whose limit is used up: dropped"),
            ("sweep", "a sweep of a million connections, for each of them"),
        ],
    );
    add(
        Box::new(move || Crowd::new(few, places)),
        Box::new(move |crowd| {
            let names = ["client-request-few", "server-reply-few", "client-ack-few"];
            let mut measured = exchanges(crowd, names, packets)?;
            measured.extend(strangers(crowd, ["stranger", "opens"], packets)?);
            Ok(measured)
        }),
        &[
            ("client-request-few", "a request of one of a thousand connections"),
            ("server-reply-few", "the first segment of its response"),
            ("client-ack-few", "its acknowledgement"),
            ("stranger", "an acknowledgement of no connection, the table nearly empty"),
            ("opens", "the end of a handshake, the table nearly empty"),
        ],
    );
    add(
        Box::new(move || Crowd::new(few, places)),
        Box::new(move |crowd| hundred(crowd, packets)),
        &[
            ("own-0-syn", "a SYN to one of a hundred servers; no limits"),
            ("own-100-syn", "the same; each of these has a limit, with tokens"),
            ("own-0-syn-others", "a SYN to one of a hundred other servers; no limits"),
            ("own-100-syn-others", "the same; a hundred limits for the first ones"),
        ],
    );
    add(
        // Four times as many as there are places: every set is full.
        Box::new(move || Crowd::new(4 * full, full)),
        Box::new(move |crowd| strangers(crowd, ["stranger-full", "opens-full"], packets)),
        &[
            ("stranger-full", "an acknowledgement of no connection, the table full"),
            ("opens-full", "the end of a handshake that finds no place"),
        ],
    );
    subjects
}
