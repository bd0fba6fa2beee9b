// SPDX-License-Identifier: Apache-2.0 OR MIT
//! HAProxy's agent-check: a server tells the HAProxies before it how many requests may be in flight.
//!
//! HAProxy connects, reads one line, and closes. The line is `maxconn:N`, and nothing else: `up` and `ready`
//! would undo what an operator has said, `drain` and `down` would take the server out. HAProxy keeps the last
//! value when nobody answers, so packaging/haproxy-agent.cfg sends requests around it then.
//!
//! A limit that the control loop has not renewed for 3 s, one in shadow mode, and one under the kill switch is
//! none.

mod unbound;

pub use unbound::UnboundAgents;

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tidegate_config::{AgentCheckConfig, Config, Endpoint};
use tidegate_model::limits::ServiceLimits;
use tidegate_model::snapshot::AgentState;
use tidegate_model::{Canary, Mode};
use tidegate_units::{Clock, Nanos};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

/// For so long a limit holds that is not renewed.
const LEASE: Nanos = Nanos::from_secs(3);
/// Most connections at once of one service that were told and are not closed yet. For one more the oldest is closed.
const CONNECTIONS_MAX: usize = 64;
/// The line fits into the buffer of a new connection: it is said at once, or never.
const SAY_MAX: Duration = Duration::from_millis(50);
/// A connection is closed after so long, whatever HAProxy does.
const TIME_MAX: Duration = Duration::from_secs(1);
/// How often a socket is tried that cannot be opened.
const RETRY: Duration = Duration::from_millis(100);

/// One service that HAProxies ask about.
struct Agent {
    service: String,
    /// Its place in the configuration.
    place: usize,
    config: AgentCheckConfig,
    shadow: bool,
    limit: Option<u64>,
    /// Why it cannot be asked.
    problem: Option<String>,
}

/// What is told, and until when.
#[derive(Default)]
struct Board {
    agents: Vec<Agent>,
    renewed: Nanos,
    released: bool,
}

impl Board {
    /// What an agent says now.
    fn told(&self, agent: &Agent, now: Nanos) -> u32 {
        let holds = !self.released && !agent.shadow && now.since(self.renewed) <= LEASE;
        agent.config.told(agent.limit.filter(|_| holds))
    }

    /// The line for the agent with this place.
    fn line(&self, at: usize, now: Nanos) -> Option<String> {
        let agent = self.agents.get(at)?;
        Some(format!("maxconn:{}\n", self.told(agent, now)))
    }
}

/// The listeners of all services with `agent_check`, in a thread of their own; closed when it is dropped.
pub struct Agents {
    board: Arc<Mutex<Board>>,
    wanted: Option<mpsc::UnboundedSender<Vec<Endpoint>>>,
    thread: Option<JoinHandle<()>>,
}

impl Agents {
    /// Starts the thread; it listens to nothing before [`Self::follow`].
    ///
    /// # Errors
    /// When there can be no thread, or no runtime in it.
    pub fn start(clock: Arc<dyn Clock + Send + Sync>) -> io::Result<Self> {
        let board: Arc<Mutex<Board>> = Arc::default();
        let (wanted, endpoints) = mpsc::unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let shown = Arc::clone(&board);
        let thread = std::thread::Builder::new()
            .name("tidegate-agent".into())
            .spawn(move || runtime.block_on(follow(endpoints, shown, clock)))?;
        Ok(Self { board, wanted: Some(wanted), thread: Some(thread) })
    }

    fn board(&self) -> MutexGuard<'_, Board> {
        locked(&self.board)
    }

    /// Listens for the services of this configuration; where their addresses are the same nothing is closed.
    pub fn follow(&self, config: &Config) {
        let mut board = self.board();
        let old = std::mem::take(&mut board.agents);
        for (place, service) in config.services.iter().enumerate() {
            let Some(agent) = &service.agent_check else { continue };
            let before = old.iter().find(|old| old.service == service.name);
            board.agents.push(Agent {
                service: service.name.clone(),
                place,
                config: agent.clone(),
                shadow: service.canary.is_only_shown(service.mode),
                limit: before.and_then(|old| old.limit),
                problem: before.and_then(|old| old.problem.clone()),
            });
        }
        let endpoints = board.agents.iter().map(|agent| agent.config.listen.clone()).collect();
        drop(board);
        if let Some(wanted) = &self.wanted {
            // The thread ends only with this.
            let _ = wanted.send(endpoints);
        }
    }

    /// Takes the limits of all services, in the order of the configuration.
    pub fn set_limits(&self, config: &Config, limits: &[ServiceLimits]) {
        let mut board = self.board();
        for agent in &mut board.agents {
            if let Some((service, limits)) =
                config.services.get(agent.place).zip(limits.get(agent.place))
            {
                agent.limit = limits.waiting_max;
                agent.shadow = service.canary.is_only_shown(service.mode);
            }
        }
    }

    /// Once a tick: the limits hold on.
    pub fn renew(&self, now: Nanos) {
        self.board().renewed = now;
    }

    /// Whether the limit of the service with this place in the configuration is only shown: in shadow, and
    /// while a canary holds, for HAProxy's limit is one for all sources.
    pub fn set_mode(&self, place: usize, mode: Mode, canary: Canary) {
        let shadow = canary.is_only_shown(mode);
        let mut board = self.board();
        if let Some(agent) = board.agents.iter_mut().find(|agent| agent.place == place) {
            agent.shadow = shadow;
        }
    }

    /// The kill switch: on tells no limit.
    pub fn release(&self, on: bool) {
        self.board().released = on;
    }

    /// Whether HAProxy is told a limit for the service with this place in the configuration: then it refuses by
    /// itself whom it lets wait too long.
    #[must_use]
    pub fn limits(&self, place: usize) -> bool {
        let board = self.board();
        let holds = |agent: &Agent| !agent.shadow && agent.limit.is_some();
        !board.released && board.agents.iter().any(|agent| agent.place == place && holds(agent))
    }

    /// What each of them says now, for people.
    #[must_use]
    pub fn states(&self, now: Nanos) -> Vec<AgentState> {
        let board = self.board();
        let of = |agent: &Agent| AgentState {
            service: agent.service.clone(),
            listen: agent.config.listen.to_string(),
            maxconn: board.told(agent, now),
            problem: agent.problem.clone().unwrap_or_default(),
        };
        board.agents.iter().map(of).collect()
    }

    /// Why services cannot be asked about, one sentence each.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let board = self.board();
        let of =
            |agent: &Agent| Some(format!("service {}: {}", agent.service, agent.problem.as_ref()?));
        board.agents.iter().filter_map(of).collect()
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        drop(self.wanted.take());
        // One that panicked serves no more either.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn locked(board: &Mutex<Board>) -> MutexGuard<'_, Board> {
    board.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn follow(
    mut wanted: mpsc::UnboundedReceiver<Vec<Endpoint>>,
    board: Arc<Mutex<Board>>,
    clock: Arc<dyn Clock + Send + Sync>,
) {
    let (mut tasks, mut current) = (JoinSet::new(), Vec::new());
    while let Some(endpoints) = wanted.recv().await {
        if endpoints == current {
            continue;
        }
        tasks.shutdown().await;
        for (at, endpoint) in endpoints.iter().enumerate() {
            tasks.spawn(serve(endpoint.clone(), at, (Arc::clone(&board), Arc::clone(&clock))));
        }
        current = endpoints;
    }
}

/// Answers at one address until it is dropped.
async fn serve(
    endpoint: Endpoint,
    at: usize,
    (board, clock): (Arc<Mutex<Board>>, Arc<dyn Clock + Send + Sync>),
) {
    let problem = |why: Option<String>| {
        if let Some(agent) = locked(&board).agents.get_mut(at) {
            agent.problem = why;
        }
    };
    let Endpoint::Ip(address) = endpoint else {
        return problem(Some(format!("{endpoint} is no address with a port")));
    };
    let listener = loop {
        match TcpListener::bind(address).await {
            Ok(listener) => break listener,
            Err(error) => problem(Some(format!("{address} cannot be opened: {error}"))),
        }
        sleep(RETRY).await;
    };
    problem(None);
    let (mut seats, mut tasks) = (VecDeque::<AbortHandle>::new(), JoinSet::new());
    loop {
        while tasks.try_join_next().is_some() {}
        let Ok((mut stream, _)) = listener.accept().await else {
            // Out of descriptors, most likely: some will be given back.
            sleep(RETRY).await;
            continue;
        };
        let line = locked(&board).line(at, clock.now());
        // Before it has a seat: however many are there, each is told.
        if !matches!(timeout(SAY_MAX, say(&mut stream, line)).await, Ok(Ok(()))) {
            continue;
        }
        seats.retain(|seat| !seat.is_finished());
        if seats.len() >= CONNECTIONS_MAX
            && let Some(oldest) = seats.pop_front()
        {
            oldest.abort();
        }
        seats.push_back(tasks.spawn(async move {
            // One that failed is none.
            let _ = timeout(TIME_MAX, linger(&mut stream)).await;
        }));
    }
}

async fn say(stream: &mut (impl AsyncWrite + Unpin), line: Option<String>) -> io::Result<()> {
    stream.write_all(line.unwrap_or_default().as_bytes()).await?;
    stream.shutdown().await
}

/// Waits for the other side to close: what HAProxy has sent (`agent-send`) and nobody has read would make the
/// kernel reset the connection before the line is read.
async fn linger(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
    let mut sent = [0; 256];
    while stream.read(&mut sent).await? > 0 {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpListener as Listener, TcpStream};
    use tidegate_config::{Registry, parse};
    use tidegate_units::MonotonicClock;

    /// Whoever connects and stays takes the limit away from nobody.
    #[test]
    fn each_is_told_however_many_stay() {
        let place = Listener::bind("127.0.0.1:0").unwrap();
        let address: SocketAddr = place.local_addr().unwrap();
        drop(place);
        let text = format!(
            "interfaces: [{{name: lo}}]\nservices:\n  shop:\n    mode: enforce\n    listen: ['*:80']\n    \
             agent_check: {{listen: '{address}', maxconn: 500}}\n"
        );
        let config = parse(&text, &Registry::new(["fresh_first"], ["default"]));
        let agents = Agents::start(Arc::new(MonotonicClock)).unwrap();
        agents.follow(&config.unwrap_or_else(|errors| panic!("{errors}")));
        let connect = || TcpStream::connect(address);
        let opened = (0..1000).find_map(|_| {
            std::thread::park_timeout(Duration::from_millis(10));
            connect().ok()
        });
        assert!(opened.is_some());
        let mut stay = Vec::new();
        for n in 0..3 * CONNECTIONS_MAX {
            let mut stream = connect().unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            stream.write_all(b"shop\n").unwrap();
            let mut line = String::new();
            stream.read_to_string(&mut line).unwrap_or_else(|error| panic!("{n}: {error}"));
            assert_eq!(line, "maxconn:500\n", "{n}");
            stay.push(stream);
        }
    }

    fn board() -> Board {
        let config = AgentCheckConfig {
            listen: "127.0.0.1:9490".parse().unwrap(),
            balancers: 2,
            maxconn: 500,
            insecure: false,
        };
        let agent = Agent {
            service: "shop".into(),
            place: 0,
            config,
            shadow: false,
            limit: Some(40),
            problem: None,
        };
        Board { agents: vec![agent], renewed: Nanos::from_secs(100), released: false }
    }

    #[test]
    fn a_limit_is_told_only_while_it_holds() {
        let now = Nanos::from_secs(103);
        let told = |board: &Board, now| board.line(0, now).unwrap();
        let mut holds = board();
        assert_eq!(told(&holds, now), "maxconn:20\n");
        assert_eq!(told(&holds, now + Nanos(1)), "maxconn:500\n", "nobody has renewed it");
        holds.released = true;
        assert_eq!(told(&holds, now), "maxconn:500\n", "the kill switch");
        let mut shadow = board();
        shadow.agents[0].shadow = true;
        assert_eq!(told(&shadow, now), "maxconn:500\n");
        let mut calm = board();
        calm.agents[0].limit = None;
        assert_eq!(told(&calm, now), "maxconn:500\n");
        assert_eq!(calm.line(1, now), None);
    }
}
