// SPDX-License-Identifier: Apache-2.0 OR MIT
//! GoBGP 3: its configuration, and its API over a Unix socket.
//!
//! Routes travel in the binary fields of the API, so what [`crate::nlri`] writes is what GoBGP sends.

mod messages;

use crate::attributes::{self, Attributes};
use crate::import::{Path, Unicast};
use crate::nlri::{self, Flow};
use crate::rule::{Action, Route, Rule};
use crate::speaker::{Error, Neighbor, Options, Session, unlink, write};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper::http::Uri;
use hyper::http::uri::PathAndQuery;
use hyper_util::rt::{TokioExecutor, TokioIo};
use ipnet::IpNet;
use messages as api;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::future::Future;
use std::net::IpAddr;
use std::path::{Path as File, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tidegate_units::{Nanos, Rate};
use tokio::net::UnixStream;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic_prost::ProstCodec;
use tower_service::Service;

/// Most paths of one family that are read: more is an error, and no table.
pub const PATHS_MAX: usize = 1_024;
/// Most prefixes that GoBGP takes of a neighbor and a family: its memory is ours. Beyond them it ends the session,
/// until the speaker starts anew.
const PREFIXES_MAX: usize = 16 * PATHS_MAX;
/// How long a call may take.
const CALL_MAX: Duration = Duration::from_secs(2);
/// Its configuration, in the speaker's directory.
pub(crate) const FILE: &str = "gobgpd.toml";
/// What a router announces goes to no other router: only what has no neighbor is sent.
const SENDS_OWN: &str = "[global.apply-policy.config]\n  export-policy-list = [\"own\"]\n  \
    default-export-policy = \"reject-route\"\n";
/// What other routers send takes no place of ours: GoBGP would prefer a route of the same rule with a higher
/// LOCAL_PREF, and take ours back. Nor of what is imported: a table that is too long cannot be read.
const TAKES_OWN: &str =
    "  import-policy-list = [\"own\"]\n  default-import-policy = \"reject-route\"\n";
const TAKES_IMPORT: &str =
    "  import-policy-list = [\"own\", \"import\"]\n  default-import-policy = \"reject-route\"\n";
const OWN: &str = "[[policy-definitions]]\n  name = \"own\"\n  \
    [[policy-definitions.statements]]\n    name = \"own\"\n    \
    [policy-definitions.statements.conditions.bgp-conditions]\n      route-type = \"local\"\n    \
    [policy-definitions.statements.actions]\n      route-disposition = \"accept-route\"\n";

/// What this neighbor sends is taken.
fn takes(neighbor: IpAddr) -> String {
    format!(
        "[[defined-sets.neighbor-sets]]\n  neighbor-set-name = \"import\"\n  \
         neighbor-info-list = [\"{neighbor}\"]\n[[policy-definitions]]\n  name = \"import\"\n  \
         [[policy-definitions.statements]]\n    name = \"import\"\n    \
         [policy-definitions.statements.conditions.match-neighbor-set]\n      \
         neighbor-set = \"import\"\n      match-set-options = \"any\"\n    \
         [policy-definitions.statements.actions]\n      route-disposition = \"accept-route\"\n"
    )
}

/// Where GoBGP listens for its API.
pub(crate) fn socket(options: &Options) -> PathBuf {
    options.dir.join("gobgp.sock")
}

/// Writes GoBGP's configuration; gives the arguments of gobgpd.
pub(crate) fn prepare(options: &Options) -> std::io::Result<Vec<String>> {
    let file = options.dir.join(FILE);
    write(&file, &configuration(options))?;
    let socket = socket(options);
    unlink(&socket)?;
    Ok(vec![
        "--config-type=toml".into(),
        format!("--config-file={}", file.display()),
        format!("--api-hosts=unix://{}", socket.display()),
        "--pprof-disable".into(),
    ])
}

/// It listens for no peers: it connects. Graceful restart is off as long as it is not named.
fn configuration(options: &Options) -> String {
    let mut text = format!(
        "[global.config]\n  as = {}\n  router-id = \"{}\"\n  port = -1\n",
        options.own_as, options.router_id
    );
    text.push_str(SENDS_OWN);
    text.push_str(if options.receive.is_some() { TAKES_IMPORT } else { TAKES_OWN });
    text.push_str(OWN);
    text.push_str(&options.receive.map(takes).unwrap_or_default());
    for Neighbor { address, local, peer_as, password, ttl_security } in &options.neighbors {
        let hold = options.hold_time_s;
        let signed = password.as_ref().map_or_else(String::new, |password| {
            format!("    auth-password = \"{}\"\n", password.text())
        });
        let _ = write!(
            text,
            "[[neighbors]]\n  [neighbors.config]\n    neighbor-address = \"{address}\"\n    \
             peer-as = {peer_as}\n{signed}  [neighbors.transport.config]\n    local-address = \"{local}\"\n    \
             remote-port = {}\n  [neighbors.timers.config]\n    hold-time = {hold}\n    \
             keepalive-interval = {}\n    connect-retry = 5\n    idle-hold-time-after-reset = 5\n",
            options.port,
            hold / 3,
        );
        if *ttl_security {
            text.push_str(
                "  [neighbors.ttl-security.config]\n    enabled = true\n    ttl-min = 255\n",
            );
        }
        // Without an import nothing that comes is kept for us.
        let bound = if options.receive.is_some() {
            format!(
                "    [neighbors.afi-safis.prefix-limit.config]\n      max-prefixes = {PREFIXES_MAX}\n"
            )
        } else {
            String::new()
        };
        let imported = options.receive == Some(*address);
        let unicast: &[&str] = if imported { &["unicast"] } else { &[] };
        for (family, safi) in ["ipv4", "ipv6"]
            .into_iter()
            .flat_map(|family| ["flowspec"].iter().chain(unicast).map(move |safi| (family, safi)))
        {
            let _ = write!(
                text,
                "  [[neighbors.afi-safis]]\n    [neighbors.afi-safis.config]\n      \
                 afi-safi-name = \"{family}-{safi}\"\n{bound}"
            );
        }
    }
    text
}

/// A connection to GoBGP's API.
#[derive(Debug)]
pub struct Client {
    grpc: Grpc<Connection>,
}

impl Client {
    /// # Errors
    /// Nobody listens there, or speaks HTTP/2.
    pub async fn connect(socket: &File) -> Result<Self, Error> {
        let stream = UnixStream::connect(socket).await.map_err(Error::Socket)?;
        let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
        let (requests, connection) = timed(async { handshake.await.map_err(Error::Http) }).await?;
        // It ends with the socket; calls then fail.
        tokio::spawn(connection);
        let origin = Uri::from_static("http://localhost");
        Ok(Self { grpc: Grpc::with_origin(Connection(requests), origin) })
    }

    /// Adds a route, or changes its rate.
    ///
    /// # Errors
    /// GoBGP does not take it.
    pub async fn announce(&mut self, route: &Route) -> Result<(), Error> {
        let path = Some(path(&route.rule, route.action, false)?);
        let request = api::AddPathRequest { table_type: api::GLOBAL, path };
        let _: api::AddPathResponse = self.call("AddPath", request).await?;
        Ok(())
    }

    /// Takes a route back. One that is not there is no error.
    ///
    /// # Errors
    /// GoBGP does not take it.
    pub async fn withdraw(&mut self, rule: &Rule) -> Result<(), Error> {
        let path = path(rule, Action::Bytes(Rate::ZERO), true)?;
        let (family, path) = (path.family, Some(path));
        let request = api::DeletePathRequest { table_type: api::GLOBAL, family, path };
        let _: api::Empty = self.call("DeletePath", request).await?;
        Ok(())
    }

    /// The sessions that are established.
    ///
    /// # Errors
    /// GoBGP does not say.
    pub async fn sessions(&mut self) -> Result<Vec<Session>, Error> {
        let mut up = Vec::new();
        self.list("ListPeer", api::ListPeerRequest {}, |response: api::ListPeerResponse| {
            let peer = response.peer.unwrap_or_default();
            let (state, timers) = (peer.state.unwrap_or_default(), peer.timers.unwrap_or_default());
            let seconds = timers.state.unwrap_or_default().negotiated_hold_time;
            let hold_time = (seconds > 0).then(|| Nanos::from_secs(seconds));
            let router = state.neighbor_address.parse::<IpAddr>();
            if state.session_state == api::ESTABLISHED {
                up.extend(router.map(|router| Session { router, hold_time }));
            }
            within(up.len())
        })
        .await?;
        Ok(up)
    }

    /// All FlowSpec paths of a family that this peer has sent.
    ///
    /// # Errors
    /// More than [`PATHS_MAX`], or GoBGP does not say.
    pub async fn flows(&mut self, family: nlri::Family, peer: IpAddr) -> Result<Vec<Path>, Error> {
        let mut found = Vec::new();
        self.paths(family, api::FLOW_SPEC, Vec::new(), |destination| {
            for path in destination.paths {
                // What we have added ourselves has no neighbor.
                let neighbor = path.neighbor_ip.parse();
                let Some(neighbor) = neighbor.ok().filter(|neighbor| *neighbor == peer) else {
                    continue;
                };
                let (nlri, attributes) = (path.nlri_binary, path.pattrs_binary);
                found.push(Path { family, nlri, attributes, neighbor });
            }
            within(found.len())
        })
        .await?;
        Ok(found)
    }

    /// The best unicast routes that cover one of these prefixes, or lie in it.
    ///
    /// # Errors
    /// More than [`PATHS_MAX`], or GoBGP does not say.
    pub async fn unicast(&mut self, prefixes: &[IpNet]) -> Result<Vec<Unicast>, Error> {
        let mut found = BTreeMap::new();
        for family in nlri::Family::ALL {
            let prefixes: Vec<_> = prefixes
                .iter()
                .filter(|prefix| nlri::Family::of(prefix) == family)
                .flat_map(|prefix| [api::SHORTER, api::LONGER].map(|kind| (prefix, kind)))
                .map(|(prefix, kind)| api::TableLookupPrefix { prefix: prefix.to_string(), kind })
                .collect();
            if prefixes.is_empty() {
                continue;
            }
            self.paths(family, api::UNICAST, prefixes, |destination| {
                let (Ok(prefix), Some(best)) = (
                    destination.prefix.parse::<IpNet>(),
                    destination.paths.iter().find(|path| path.best),
                ) else {
                    return Ok(());
                };
                let Ok(neighbor) = best.neighbor_ip.parse() else { return Ok(()) };
                let read = Attributes::decode(&best.pattrs_binary).unwrap_or_default();
                let (originator, last_as) = (read.originator, read.last_as);
                found.insert(prefix, Unicast { prefix, neighbor, originator, last_as });
                within(found.len())
            })
            .await?;
        }
        Ok(found.into_values().collect())
    }

    async fn paths(
        &mut self,
        family: nlri::Family,
        safi: i32,
        prefixes: Vec<api::TableLookupPrefix>,
        mut each: impl FnMut(api::Destination) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let family = Some(api::Family { afi: afi(family), safi });
        let request = api::ListPathRequest {
            table_type: api::GLOBAL,
            family,
            prefixes,
            enable_only_binary: true,
        };
        self.list("ListPath", request, |response: api::ListPathResponse| {
            response.destination.map_or(Ok(()), &mut each)
        })
        .await
    }

    async fn call<Q, A>(&mut self, name: &str, request: Q) -> Result<A, Error>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let path = method(name)?;
        let call = async {
            self.grpc.ready().await.map_err(Error::Http)?;
            let codec = ProstCodec::<Q, A>::default();
            let response = self.grpc.unary(tonic::Request::new(request), path, codec).await;
            Ok(response.map_err(refused)?.into_inner())
        };
        timed(call).await
    }

    async fn list<Q, A>(
        &mut self,
        name: &str,
        request: Q,
        mut each: impl FnMut(A) -> Result<(), Error>,
    ) -> Result<(), Error>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let path = method(name)?;
        let call = async {
            self.grpc.ready().await.map_err(Error::Http)?;
            let codec = ProstCodec::<Q, A>::default();
            let request = tonic::Request::new(request);
            let response = self.grpc.server_streaming(request, path, codec).await;
            let mut responses = response.map_err(refused)?.into_inner();
            while let Some(response) = responses.message().await.map_err(refused)? {
                each(response)?;
            }
            Ok(())
        };
        timed(call).await
    }
}

fn refused(status: tonic::Status) -> Error {
    Error::Refused(status.to_string())
}

fn within(count: usize) -> Result<(), Error> {
    if count > PATHS_MAX { Err(Error::TooMany) } else { Ok(()) }
}

fn method(name: &str) -> Result<PathAndQuery, Error> {
    let path = format!("/apipb.GobgpApi/{name}");
    PathAndQuery::try_from(path).map_err(|why| Error::Refused(why.to_string()))
}

async fn timed<T>(call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    tokio::time::timeout(CALL_MAX, call).await.unwrap_or(Err(Error::Silent))
}

const fn afi(family: nlri::Family) -> i32 {
    match family {
        nlri::Family::V4 => 1,
        nlri::Family::V6 => 2,
    }
}

fn path(rule: &Rule, action: Action, is_withdraw: bool) -> Result<api::Path, Error> {
    let nlri_binary = rule.flow().and_then(|flow: Flow| flow.encode()).map_err(Error::Rule)?;
    let family = Some(api::Family { afi: afi(rule.family()), safi: api::FLOW_SPEC });
    let pattrs_binary = attributes::encode(action);
    Ok(api::Path { family, nlri_binary, pattrs_binary, is_withdraw, ..api::Path::default() })
}

/// HTTP/2 of `hyper` as `tonic` calls it.
#[derive(Debug)]
struct Connection(SendRequest<Body>);

impl Service<hyper::Request<Body>> for Connection {
    type Response = hyper::Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: hyper::Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::speaker::{Helper, Kind};

    fn options(receive: bool) -> Options {
        let [one, other, local] = [1, 2, 11].map(|last| IpAddr::from([192, 0, 2, last]));
        let neighbor = |address| Neighbor {
            address,
            local,
            peer_as: 65002,
            password: None,
            ttl_security: false,
        };
        Options {
            kind: Kind::GoBgp,
            program: "gobgpd".into(),
            helper: Helper { program: "keeper".into(), arguments: Vec::new() },
            dir: "/run/bgp".into(),
            own_as: 65001,
            router_id: [192, 0, 2, 11].into(),
            neighbors: vec![neighbor(one), neighbor(other)],
            port: 179,
            hold_time_s: 9,
            lease: Nanos::from_secs(3),
            receive: receive.then_some(one),
        }
    }

    #[test]
    fn only_who_imports_receives_and_it_is_bounded() {
        let [alone, imports] = [false, true].map(|receive| configuration(&options(receive)));
        assert_eq!(alone.matches("-flowspec").count(), 4);
        assert!(!alone.contains("-unicast") && !alone.contains("neighbor-sets"), "{alone}");
        assert!(alone.contains(TAKES_OWN) && !alone.contains("prefix-limit"), "{alone}");
        let (one, other) = imports.split_once("neighbor-address = \"192.0.2.2\"").unwrap();
        assert_eq!((one.matches("-flowspec").count(), one.matches("-unicast").count()), (2, 2));
        assert_eq!((other.matches("-flowspec").count(), other.matches("-unicast").count()), (2, 0));
        assert_eq!(imports.matches("max-prefixes = 16384").count(), 6, "{imports}");
        assert!(imports.contains(TAKES_IMPORT), "{imports}");
        assert!(imports.contains("neighbor-info-list = [\"192.0.2.1\"]"), "{imports}");
    }
}
