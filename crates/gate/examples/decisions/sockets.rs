// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Each adapter at its socket, asked by one connection or few, as its proxy does. What passes is reported.

use super::{grpc::Grpc, http::Http, spop::Spop};
use std::cell::{Cell, RefCell};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tidegate_config::{Config, Registry, parse};
use tidegate_gate::{Adapters, Gate};
use tidegate_model::limits::ServiceLimits;
use tidegate_units::{Clock, MonotonicClock, Nanos, Rate};
use tokio::task::{JoinSet, LocalSet, spawn_local};
use tokio::time::{MissedTickBehavior, interval, sleep};

/// How long each measurement takes.
const SPAN: Duration = Duration::from_secs(4);
/// Questions under way at once where they are to come as fast as possible.
const AT_ONCE: usize = 64;
/// Questions each millisecond, else.
const EACH_MS: usize = 5;
/// Request headers that a browser sends, more or less.
pub(crate) const HEADERS: [(&str, &str); 6] = [
    ("host", "shop.example"),
    ("user-agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"),
    ("accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"),
    ("accept-encoding", "gzip, deflate, br, zstd"),
    ("accept-language", "en-US,en;q=0.5"),
    ("cookie", "session=0123456789abcdef0123456789abcdef"),
];

/// A proxy that asks.
pub(crate) trait Proxy: Clone + 'static {
    /// Asks once. `Some`: it passed, and is to be reported by this token.
    async fn ask(&self) -> io::Result<Option<String>>;
    /// Reports a request that passed.
    async fn report(&self, token: &str) -> io::Result<()>;
}

pub(crate) fn run() {
    let dir = std::env::temp_dir().join(format!("tidegate-decisions-{}", std::process::id()));
    let done = std::fs::create_dir_all(&dir).and_then(|()| measure(&dir));
    let removed = std::fs::remove_dir_all(&dir);
    if let Err(error) = done.and(removed) {
        println!("{error}");
    }
}

fn config(dir: &Path, caddy: SocketAddr) -> Config {
    let at = |file: &str| format!("unix:{}", dir.join(file).display());
    let gateway = |name: &str, adapter: &str, completions: &str| {
        format!(
            "  {name}: {{adapter: {adapter}, listen: '{}'{completions}, routes: [{{service: shop}}]}}\n",
            at(name)
        )
    };
    let apart = |name: &str| format!(", completions: '{}'", at(&format!("{name}.log")));
    let text = format!(
        "services: {{shop: {{mode: enforce}}}}\ngateways:\n{}{}{}{}{}",
        gateway("haproxy", "haproxy", &apart("haproxy")),
        gateway("nginx", "nginx", &apart("nginx")),
        gateway("caddy", "caddy", &format!(", completions: '{caddy}'")),
        gateway("traefik", "traefik", ""),
        gateway("envoy", "envoy", ""),
    );
    parse(&text, &Registry::new(["fresh_first"], ["default"]))
        .unwrap_or_else(|errors| panic!("{errors}"))
}

fn measure(dir: &Path) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    println!(
        "adapter            verdicts          decisions/s   CPU of the gate   at 5,000/s: p50       p99       longest"
    );
    for (name, rate) in [("all admitted", 1e9), ("9 of 10 refused", 500.0)] {
        let caddy = free_port()?;
        let config = config(dir, caddy);
        let gate = Arc::new(Gate::new(&config, 1));
        let limits = ServiceLimits {
            rate: Some(Rate::per_second(rate)),
            burst: 100,
            ..ServiceLimits::default()
        };
        gate.set_limits(&config, &[limits]);
        let adapters = Adapters::start(Arc::clone(&gate), Arc::new(MonotonicClock))?;
        adapters.follow(&config.gateways);
        let at = |file: &str| dir.join(file);
        let all = async {
            let ticks = spawn_local(tick(Arc::clone(&gate)));
            while adapters.problems().iter().any(Option::is_some) || adapters.problems().is_empty()
            {
                sleep(Duration::from_millis(10)).await;
            }
            let logs = |name: &str| -> PathBuf { at(&format!("{name}.log")) };
            let haproxy = Spop::connect(&at("haproxy"), &logs("haproxy")).await?;
            row("haproxy (SPOP)", name, haproxy).await?;
            row("nginx", name, Http::nginx(&at("nginx"), &logs("nginx"))?).await?;
            row("caddy", name, Http::caddy(&at("caddy"), caddy).await?).await?;
            row("traefik", name, Http::traefik(&at("traefik"))).await?;
            row("envoy (ext_authz)", name, Grpc::ext_authz(&at("envoy")).await?).await?;
            row("envoy (rate limit)", name, Grpc::rate_limit(&at("envoy")).await?).await?;
            ticks.abort();
            io::Result::Ok(())
        };
        LocalSet::new().block_on(&runtime, all)?;
    }
    Ok(())
}

/// Caddy reports by UDP.
fn free_port() -> io::Result<SocketAddr> {
    std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

/// The daemon's part.
async fn tick(gate: Arc<Gate>) {
    let mut ticks = interval(Duration::from_millis(100));
    loop {
        ticks.tick().await;
        gate.tick(MonotonicClock.now());
    }
}

async fn row<P: Proxy>(adapter: &str, verdicts: &str, proxy: P) -> io::Result<()> {
    let (rate, cpu) = fast(&proxy).await?;
    let mut times = paced(&proxy).await?;
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].0 / 1000;
    let (median, p99, longest) = (at(0.5), at(0.99), at(1.0));
    println!(
        "{adapter:<18} {verdicts:<17} {rate:>11.0} {cpu:>14.1} us {median:>19} us {p99:>6} us {longest:>10} us"
    );
    Ok(())
}

/// As fast as they are answered: questions per second, and microseconds of the gate's thread for each.
async fn fast<P: Proxy>(proxy: &P) -> io::Result<(f64, f64)> {
    let (begin, cpu) = (MonotonicClock.now(), cpu_of_the_gate());
    let asked = Rc::new(Cell::new(0_u64));
    let mut all = JoinSet::new();
    for _ in 0..AT_ONCE {
        let (proxy, asked) = (proxy.clone(), Rc::clone(&asked));
        all.spawn_local(async move {
            while MonotonicClock.now().since(begin) < Nanos::from(SPAN) {
                once(&proxy).await?;
                asked.set(asked.get() + 1);
            }
            io::Result::Ok(())
        });
    }
    while let Some(done) = all.join_next().await {
        done??;
    }
    let (took, used) = (MonotonicClock.now().since(begin), cpu_of_the_gate().since(cpu));
    let asked = asked.get() as f64;
    Ok((asked / took.as_secs_f64(), used.as_secs_f64() * 1e6 / asked))
}

/// At 5,000/s, whether answered or not: the time from the tick that sends it, with four others. The timer
/// itself is up to a millisecond late, which is nobody's latency.
async fn paced<P: Proxy>(proxy: &P) -> io::Result<Vec<Nanos>> {
    let times = Rc::new(RefCell::new(Vec::new()));
    let mut ticks = interval(Duration::from_millis(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut all = JoinSet::new();
    for _ in 0..SPAN.as_millis() {
        ticks.tick().await;
        let begin = MonotonicClock.now();
        for _ in 0..EACH_MS {
            let (proxy, times) = (proxy.clone(), Rc::clone(&times));
            all.spawn_local(async move {
                let token = proxy.ask().await?;
                times.borrow_mut().push(MonotonicClock.now().since(begin));
                match token {
                    Some(token) => proxy.report(&token).await,
                    None => Ok(()),
                }
            });
        }
        while let Some(done) = all.try_join_next() {
            done??;
        }
    }
    while let Some(done) = all.join_next().await {
        done??;
    }
    Ok(times.take())
}

async fn once(proxy: &impl Proxy) -> io::Result<()> {
    match proxy.ask().await? {
        Some(token) => proxy.report(&token).await,
        None => Ok(()),
    }
}

/// What the thread of the adapters has used.
fn cpu_of_the_gate() -> Nanos {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let read = |path: PathBuf| std::fs::read_to_string(path).unwrap_or_default();
    let ours = tasks.filter(|task| read(task.path().join("comm")).starts_with("tidegate-gate"));
    let used = ours.filter_map(|task| {
        read(task.path().join("schedstat")).split(' ').next()?.parse::<u64>().ok()
    });
    Nanos(used.sum())
}

/// The token behind `marker`.
pub(crate) fn token(text: &[u8], marker: &[u8]) -> Option<String> {
    let at = text.windows(marker.len()).position(|window| window == marker)? + marker.len();
    String::from_utf8(text.get(at..at + 16)?.to_vec()).ok()
}
