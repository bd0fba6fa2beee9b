// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Faults that only the system can tell, and what is right but perhaps not meant: found by the
//! daemon and by `check`, worded here.

use super::error::{ConfigError, step};
use super::gateways::Endpoint;
use super::shape::Places;
use super::suggest;
use super::types::{Config, InterfaceConfig};
use std::path::{Path, PathBuf};
use tidegate_model::Namespace;

/// A configuration that does not fit the system it runs on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SystemFault {
    /// An interface does not exist.
    InterfaceMissing {
        /// Its name.
        name: String,
        /// The interfaces that exist.
        present: Vec<String>,
    },
    /// Another program owns the XDP hook; it is never replaced.
    ForeignXdp {
        /// The interface.
        interface: String,
        /// The program's id and, where it has one, its name, as `bpftool prog` shows them.
        program: String,
    },
    /// Another daemon has an interface.
    InterfaceHeld {
        /// The interface.
        interface: String,
        /// Who has it, and what to do.
        by: String,
    },
    /// Another daemon, on another interface, limits an address of a service, too.
    LimitedBeside {
        /// The service.
        service: String,
        /// Index in its `listen`.
        index: usize,
        /// Who does, and what to do.
        by: String,
    },
    /// The directory for pins is on no BPF file system.
    PinsNotBpffs {
        /// The directory.
        path: PathBuf,
    },
    /// `daemon.user` names nobody.
    UserMissing {
        /// The name.
        name: String,
    },
    /// A directory in which the daemon keeps what outlives it, and cannot write after its start.
    NotKept {
        /// The directory.
        directory: PathBuf,
    },
    /// A file that the daemon cannot read any more after its start.
    Unreadable {
        /// The key that names it.
        at: String,
        /// The file.
        path: PathBuf,
        /// As whom the daemon runs then.
        user: String,
        /// Why not.
        why: String,
    },
    /// A certificate, key or authority of `cluster` that cannot be used.
    PeerFile {
        /// The file.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// The BGP speaker is not there.
    SpeakerMissing {
        /// Its program.
        program: PathBuf,
    },
    /// The password of a session with a router cannot be used.
    PasswordFile {
        /// The router.
        peer: String,
        /// Why not.
        why: String,
    },
    /// A router refuses connections of a service that this host would never refuse, or last.
    RouteForAll {
        /// Index in `flowspec.export`.
        index: usize,
        /// Whose.
        whose: String,
    },
    /// A certificate, key or authority of a gateway that cannot be used.
    GatewayFile {
        /// The gateway.
        gateway: String,
        /// The file.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// A cgroup does not exist.
    CgroupMissing {
        /// The service.
        service: String,
        /// Its path.
        path: PathBuf,
    },
    /// Nobody listens on an address of a service.
    NothingListens {
        /// The service.
        service: String,
        /// Index in its `listen`.
        index: usize,
    },
    /// A network namespace cannot be found or entered.
    NamespaceMissing {
        /// The key that names it.
        at: String,
        /// Why not.
        why: String,
        /// Whether nothing can be attached for it.
        fatal: bool,
    },
    /// Nobody listens on an address of a service here, and somebody does in another network namespace; or
    /// who listens here passes connections on to there.
    ListensElsewhere {
        /// The service.
        service: String,
        /// Index in its `listen`.
        index: usize,
        /// Who listens where, and what to write.
        found: String,
    },
    /// Connections to what is behind an interface are not seen there.
    WrongSide {
        /// The interface.
        interface: String,
        /// Why, and where to attach.
        why: String,
    },
    /// An interface at which nothing is seen or refused as it stands.
    Unprotected {
        /// The interface.
        interface: String,
        /// Why, and what to do.
        why: String,
    },
    /// An interface has no hooks of its own, because its traffic is evaluated below.
    OnTop {
        /// The interface.
        interface: String,
        /// Where it is, if not in the daemon's network namespace.
        namespace: Option<Namespace>,
        /// The one below, which is configured, too.
        lower: String,
    },
    /// An ssh server listens on an address of a service: shedding there would lock people out.
    ListensOnSsh {
        /// The service.
        service: String,
        /// Index in its `listen`.
        index: usize,
        /// The port.
        port: u16,
    },
    /// A gateway takes reports by a Unix socket for which the host lets few datagrams wait.
    ShortQueue {
        /// The gateway.
        gateway: String,
        /// How many.
        datagrams: u64,
    },
    /// A gateway listens where other hosts reach it.
    OpenGateway {
        /// The gateway.
        gateway: String,
        /// The key: `listen` or `completions`.
        key: &'static str,
        /// Where.
        endpoint: Endpoint,
    },
    /// The limit of a service can be read by other hosts.
    OpenAgent {
        /// The service.
        service: String,
        /// Where.
        endpoint: Endpoint,
    },
    /// Somebody listens already where a gateway shall; perhaps the daemon that runs.
    GatewayInUse {
        /// The gateway.
        gateway: String,
        /// The key: `listen` or `completions`.
        key: &'static str,
        /// Where.
        endpoint: Endpoint,
    },
    /// The same where HAProxy's agent-check shall.
    AgentInUse {
        /// The service.
        service: String,
        /// Where.
        endpoint: Endpoint,
    },
}

/// A fault with its place, and whether it forbids to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The fault.
    pub error: ConfigError,
    /// Whether it is an error; else it is a warning.
    pub fatal: bool,
}

impl SystemFault {
    /// Whether it is an error in `check` and, as far as a reload looks, refused there; else it is a
    /// warning. The daemon begins with none of these but bad certificates of peers.
    #[must_use]
    pub const fn fatal(&self) -> bool {
        !matches!(
            self,
            Self::NamespaceMissing { fatal: false, .. }
                | Self::ListensElsewhere { .. }
                | Self::LimitedBeside { .. }
                | Self::WrongSide { .. }
                | Self::Unprotected { .. }
                | Self::OnTop { .. }
                | Self::Unreadable { .. }
                | Self::NotKept { .. }
                | Self::RouteForAll { .. }
                | Self::CgroupMissing { .. }
                | Self::NothingListens { .. }
                | Self::ShortQueue { .. }
                | Self::OpenGateway { .. }
                | Self::OpenAgent { .. }
                | Self::GatewayInUse { .. }
                | Self::AgentInUse { .. }
        )
    }

    /// What is wrong with what routers are told.
    fn of_routers(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::SpeakerMissing { program } => write!(
                f,
                "{} is not there, or cannot be executed: install it; until then nothing is announced",
                program.display()
            ),
            Self::RouteForAll { whose, .. } => {
                write!(f, "a router that holds its limit refuses {whose} like everybody else")
            }
            Self::PasswordFile { why, .. } => f.write_str(why),
            _ => Ok(()),
        }
    }

    /// The fault at its place in the file.
    #[must_use]
    pub fn locate(&self, config: &Config, places: &Places) -> Finding {
        Finding { error: places.error(&self.path(config), self.to_string()), fatal: self.fatal() }
    }

    fn path(&self, config: &Config) -> String {
        let interface = |name: &str, key: &str| {
            let index = config.interfaces.iter().position(|i| i.name == name).unwrap_or_default();
            format!("interfaces[{index}].{key}")
        };
        match self {
            Self::InterfaceMissing { name, .. } => interface(name, "name"),
            Self::ForeignXdp { interface: name, .. } => interface(name, "attach"),
            Self::WrongSide { interface: name, .. }
            | Self::Unprotected { interface: name, .. }
            | Self::InterfaceHeld { interface: name, .. } => interface(name, "name"),
            Self::OnTop { interface: name, namespace, .. } => {
                let is = |of: &InterfaceConfig| (&of.name, &of.namespace) == (name, namespace);
                format!(
                    "interfaces[{}].name",
                    config.interfaces.iter().position(is).unwrap_or_default()
                )
            }
            Self::NamespaceMissing { at, .. } | Self::Unreadable { at, .. } => at.clone(),
            Self::PinsNotBpffs { .. } => "daemon.pins".into(),
            Self::UserMissing { .. } | Self::NotKept { .. } => "daemon.user".into(),
            Self::SpeakerMissing { .. } => {
                let given = config.flowspec.as_ref().is_some_and(|f| f.program.is_some());
                if given { "flowspec.program" } else { "flowspec.speaker" }.into()
            }
            Self::PasswordFile { peer, .. } => {
                format!("flowspec.peers.{}.password_file", step(peer))
            }
            Self::RouteForAll { index, .. } => format!("flowspec.export[{index}].service"),
            Self::PeerFile { path, .. } => {
                let named = config.files().into_iter().find(|(_, file)| file == path);
                named.map_or_else(|| "cluster.certificate".to_owned(), |(key, _)| key)
            }
            Self::GatewayFile { gateway, path, .. } => {
                let of = config.gateways.iter().find(|of| of.name == *gateway);
                let mut files =
                    of.and_then(|of| of.tls.as_ref()).into_iter().flat_map(|t| t.files());
                let key =
                    files.find(|(_, file)| file == path).map_or("certificate", |(key, _)| key);
                format!("gateways.{}.tls.{key}", step(gateway))
            }
            Self::CgroupMissing { service, .. } => {
                format!("services.{}.process.cgroup", step(service))
            }
            Self::NothingListens { service, index }
            | Self::ListensElsewhere { service, index, .. }
            | Self::LimitedBeside { service, index, .. }
            | Self::ListensOnSsh { service, index, .. } => {
                format!("services.{}.listen[{index}]", step(service))
            }
            Self::ShortQueue { gateway, .. } => {
                format!("gateways.{}.completions", step(gateway))
            }
            Self::OpenGateway { gateway, key, .. } => format!("gateways.{}.{key}", step(gateway)),
            Self::OpenAgent { service, .. } | Self::AgentInUse { service, .. } => {
                format!("services.{}.agent_check.listen", step(service))
            }
            Self::GatewayInUse { gateway, key, .. } => format!("gateways.{}.{key}", step(gateway)),
        }
    }
}

impl std::fmt::Display for SystemFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::InterfaceMissing { name, present } => {
                let hint = suggest::phrase(name, present);
                let present = present.join(", ");
                write!(f, "found {name:?}: no such interface{hint}; present: {present}")
            }
            Self::ForeignXdp { interface, program } => write!(
                f,
                "another XDP program ({program}) owns {interface} and is not replaced; \
                 write attach: tcx, or remove it"
            ),
            Self::InterfaceHeld { by, .. } | Self::LimitedBeside { by, .. } => f.write_str(by),
            Self::PinsNotBpffs { path } => write!(
                f,
                "{} is on no BPF file system; mount one: mount -t bpf bpf /sys/fs/bpf",
                path.display()
            ),
            Self::UserMissing { name } => write!(
                f,
                "found {name:?}: no such user (useradd --system {name}); the daemon stays root, without capabilities"
            ),
            Self::NotKept { directory } => not_kept(f, directory),
            Self::Unreadable { path, user, why, .. } => unreadable(f, path, user, why),
            Self::PeerFile { path, why } | Self::GatewayFile { path, why, .. } => {
                write!(f, "{}: {why}", path.display())
            }
            Self::SpeakerMissing { .. } | Self::PasswordFile { .. } | Self::RouteForAll { .. } => {
                self.of_routers(f)
            }
            Self::CgroupMissing { path, .. } => {
                write!(f, "{} does not exist; until it does there is no CPU signal", path.display())
            }
            Self::NothingListens { .. } => f.write_str("nobody listens here at the moment"),
            Self::NamespaceMissing { why, .. } => write!(f, "no such network namespace: {why}"),
            Self::ListensElsewhere { found: text, .. }
            | Self::WrongSide { why: text, .. }
            | Self::Unprotected { why: text, .. } => f.write_str(text),
            Self::OnTop { interface, namespace, lower } => {
                let place = namespace.as_ref().map(|of| format!(" (in {of})")).unwrap_or_default();
                write!(
                    f,
                    "{interface}{place} is on top of {lower}, where its traffic is evaluated already: it gets no \
                     hooks of its own"
                )
            }
            Self::ListensOnSsh { service, port, .. } => write!(
                f,
                "the ssh server of this machine listens on port {port}, which is exempt, so \
                 the service {service:?} cannot protect it; take the port out of its listen, give \
                 the address on which the service itself listens, or move the ssh server"
            ),
            Self::ShortQueue { datagrams, .. } => short_queue(f, *datagrams),
            Self::OpenGateway { key, endpoint, .. } => open_gateway(f, key, endpoint),
            Self::OpenAgent { endpoint, .. } => write!(
                f,
                "found {endpoint}, which other hosts reach: whoever does can read the limit (insecure: true)"
            ),
            Self::GatewayInUse { endpoint, .. } => {
                in_use(f, endpoint, "the gateway cannot be served")
            }
            Self::AgentInUse { endpoint, .. } => in_use(f, endpoint, "HAProxy is told nothing"),
        }
    }
}

fn not_kept(f: &mut std::fmt::Formatter<'_>, directory: &Path) -> std::fmt::Result {
    write!(
        f,
        "{} belongs to another user, and the daemon stays root, without capabilities: it makes no socket and keeps \
         nothing there for a restart; name that user here, or give the directory to root (systemd: User=root)",
        directory.display()
    )
}

fn short_queue(f: &mut std::fmt::Formatter<'_>, datagrams: u64) -> std::fmt::Result {
    write!(
        f,
        "this host lets {datagrams} reports wait at a Unix socket: a busy proxy loses more, and requests \
         without a report count as in flight; set net.unix.max_dgram_qlen to 512, as systemd does, and start tidegate \
         after that"
    )
}

fn open_gateway(
    f: &mut std::fmt::Formatter<'_>,
    key: &str,
    endpoint: &Endpoint,
) -> std::fmt::Result {
    let may = if key == "listen" { "ask and report" } else { "report" };
    write!(
        f,
        "found {endpoint}, which other hosts reach: whoever does may {may} in the proxy's name \
         (insecure: true)"
    )
}

fn in_use(f: &mut std::fmt::Formatter<'_>, endpoint: &Endpoint, then: &str) -> std::fmt::Result {
    write!(
        f,
        "found {endpoint}, where somebody listens already; if that is no running tidegate, {then}"
    )
}

fn unreadable(
    f: &mut std::fmt::Formatter<'_>,
    path: &Path,
    user: &str,
    why: &str,
) -> std::fmt::Result {
    let path = path.display();
    write!(f, "{path}: after its start the daemon is {user}, and cannot read this: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Registry, parse_located};

    #[test]
    fn a_fault_of_the_system_stands_at_the_key_that_names_it() {
        let text = "interfaces:\n  - name: eth0\n  - {name: eht1, attach: xdp}\n\
                    services:\n  shop: {mode: shadow, listen: [\"*:80\"]}\n";
        let registry = Registry::new(["fresh_first"], ["default"]);
        let (config, places) = parse_located(text, &registry).unwrap();
        let say = |fault: SystemFault| fault.locate(&config, &places).error.to_string();
        let present = ["lo", "eth0", "eth1"].map(String::from).to_vec();
        assert_eq!(
            say(SystemFault::InterfaceMissing { name: "eht1".into(), present }),
            "3:12: interfaces[1].name: found \"eht1\": no such interface (did you mean \"eth1\"?); \
             present: lo, eth0, eth1"
        );
        assert!(
            say(SystemFault::ForeignXdp { interface: "eht1".into(), program: "7 other".into() })
                .starts_with("3:26: interfaces[1].attach: another XDP program (7 other) owns eht1")
        );
        let listens = SystemFault::NothingListens { service: "shop".into(), index: 0 };
        assert!(!listens.fatal());
        assert_eq!(
            say(listens),
            "5:33: services.shop.listen[0]: nobody listens here at the moment",
            "what arrives is evaluated all the same"
        );
        let ssh = SystemFault::ListensOnSsh { service: "shop".into(), index: 0, port: 80 };
        assert!(ssh.fatal(), "a service there could lock people out");
        let text = say(ssh);
        assert!(text.starts_with("5:33: services.shop.listen[0]: ") && text.contains("port 80"));
        assert!(text.contains("\"shop\"") && text.contains("move the ssh server"), "{text}");
    }
}
