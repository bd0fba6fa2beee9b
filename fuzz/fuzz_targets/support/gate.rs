// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What comes to the listeners of a gateway: questions and reports, of any bytes.

use tidegate_config::{Registry, parse};
use tidegate_gate::{
    Answer, Ask, Completed, Completion, Gate, HaproxyTalk, Headers, Id, Turn, caddy_report,
    envoy_check, envoy_rate_limit, envoy_reports, forwarded_client, haproxy_report, nginx_report,
    traefik_export, traefik_report,
};
use tidegate_model::limits::ServiceLimits;
use tidegate_units::{Nanos, Rate};

const CONFIG: &str = "services: {shop: {mode: enforce}}
gateways:
  edge:
    adapter: envoy
    listen: 127.0.0.1:9470
    routes:
      - {path: /cart/, methods: [POST], cookie: {name: s}, service: shop}
      - {path: /a/b, host: '*.shop.example', header: {name: x-tier, value: gold}, service: shop}
      - {service: shop}
";

/// A gate with a limit, which remembers what it was told.
pub(crate) struct Harness {
    gate: Gate,
    now: Nanos,
}

impl Default for Harness {
    fn default() -> Self {
        let config = parse(CONFIG, &Registry::new(["fresh_first"], ["default"]));
        let config = config.unwrap_or_else(|errors| panic!("{errors}"));
        let gate = Gate::new(&config, 1);
        let now = Nanos::SECOND;
        gate.tick(now);
        let limits = ServiceLimits {
            rate: Some(Rate::per_second(100.0)),
            burst: 3,
            waiting_max: Some(4),
            ..ServiceLimits::default()
        };
        assert!(gate.set_limits(&config, &[limits]).is_empty());
        Self { gate, now }
    }
}

struct Given<'a>(&'a str);

impl Headers for Given<'_> {
    fn get(&self, _: &str) -> Option<&str> {
        Some(self.0)
    }
}

impl Harness {
    /// The bytes as a report, and as the parts of a question. Everything is counted once, a token of
    /// ours ends one request, and of what nobody has asked nothing is in flight.
    pub(crate) fn run(&mut self, bytes: &[u8]) {
        self.now += Nanos::from_millis(1);
        if self.now.0.is_multiple_of(Nanos::from_millis(100).0) {
            self.gate.tick(self.now);
        }
        if let Some((token, completion)) = nginx_report(bytes) {
            assert!(completion.status < 1000);
            self.gate.complete(self.now, Id::Token(token), &completion);
        }
        if let Ok(Some((token, completion))) = haproxy_report(bytes) {
            assert!(completion.status < 1000);
            self.gate.complete(self.now, Id::Token(token), &completion);
        }
        let json = [caddy_report(bytes), traefik_report(bytes)];
        for (token, completion) in json.into_iter().filter_map(|report| report.ok().flatten()) {
            assert!(completion.status < 1000);
            self.gate.complete(self.now, Id::Token(token), &completion);
        }
        let mut length = 0;
        let _ = traefik_export(bytes, |line| {
            length += line.len();
            let _ = traefik_report(line);
        });
        assert!(length <= bytes.len(), "each byte is in one record at most");
        self.spop(bytes);
        self.envoy(bytes);
        self.http(bytes);
    }

    /// The bytes as a connection of HAProxy: what is answered are whole frames, nothing is kept of what
    /// was read, and who is not understood is told so before it is closed.
    fn spop(&self, bytes: &[u8]) {
        let (mut talk, mut received, mut out) =
            (HaproxyTalk::default(), bytes.to_vec(), Vec::new());
        let goes_on = talk.hear(&mut received, &mut out, |ask| self.at_once(ask));
        assert!(bytes.ends_with(&received));
        assert!(goes_on || !out.is_empty());
        assert!(!goes_on || received.len() < 4 + 16_380);
        let mut rest = out.as_slice();
        while let Some((length, after)) = rest.split_first_chunk::<4>() {
            rest = &after[u32::from_be_bytes(*length) as usize..];
        }
        assert!(rest.is_empty());
    }

    /// The bytes as messages of Envoy: who asks is told something, and who reports is believed only
    /// what a response can be.
    fn envoy(&self, bytes: &[u8]) {
        let mut asked = 0;
        let told = envoy_check(bytes, |ask| {
            asked += 1;
            self.at_once(ask)
        });
        assert_eq!(asked, u32::from(told.is_some()));
        assert!(told.is_none_or(|told| !told.is_empty() && told.len() < 2048));
        asked = 0;
        let told = envoy_rate_limit(bytes, |ask| {
            asked += 1;
            self.at_once(ask)
        });
        assert_eq!(asked, u32::from(told.is_some()));
        assert!(told.is_none_or(|told| !told.is_empty() && told.len() < 2048));
        for (token, completion) in envoy_reports(bytes).unwrap_or_default() {
            assert!(completion.status < 1000);
            self.gate.complete(self.now, Id::Token(token), &completion);
        }
    }

    /// Asks, and reports at once.
    fn at_once(&self, ask: &Ask<'_>) -> Answer {
        let answer = self.gate.ask(self.now, &Ask { gateway: "edge", ..*ask });
        if let Some(token) = answer.token {
            let done = Completion { status: 200, ..Completion::default() };
            assert_eq!(self.gate.complete(self.now, Id::Token(token), &done), Completed::Counted);
        }
        answer
    }

    /// The bytes as the parts of a question by HTTP.
    fn http(&self, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes);
        let mut parts = text.split('\0');
        let mut next = || parts.next().unwrap_or_default();
        let (method, target, host, id, header) = (next(), next(), next(), next(), next());
        let before = self.gate.totals(0).unwrap_or_default();
        let said = header.len() % 2 == 1;
        let turn = Turn { worker: id.len() as u32, began: Nanos(header.len() as u64 * 10_000_000) };
        let answer = self.gate.ask(
            self.now,
            &Ask {
                gateway: "edge",
                method,
                host: (!host.is_empty()).then_some(host),
                target,
                client: forwarded_client(host, 1 + id.len() % 3),
                request_id: Some(id),
                reported_by_id: id.len() % 2 == 1,
                share: None,
                turn: said.then_some(turn),
                headers: &Given(header),
            },
        );
        let after = self.gate.totals(0).unwrap_or_default();
        assert_eq!(after.offered - before.offered, u64::from(answer.service.is_some()));
        assert_eq!(after.offered, after.admitted + after.refused);
        if let Some(refusal) = &answer.refusal {
            assert!(answer.token.is_none() && (1..=60).contains(&refusal.retry_after_s));
        }
        if let Some(token) = answer.token {
            let done = tidegate_gate::Completion { status: 200, ..Default::default() };
            assert_eq!(self.gate.complete(self.now, Id::Token(token), &done), Completed::Counted);
        }
        assert_eq!(self.gate.totals(0).unwrap_or_default().waiting, 0);
    }
}
