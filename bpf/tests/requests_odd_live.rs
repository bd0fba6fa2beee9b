// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Request rules with real sockets and with what comes seldom: requests that are none, heads that never
//! end, bytes one by one; and a client in a VLAN, whose tag the kernel has removed from the frame.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;
use support::netns::{AttachMode, Net, inside, plan, wait_for, within};
use support::packet::{ACK, CLIENT4, PSH, Packet, SERVER4, SYN, eth};
use support::talk::{read_segment, tags};
use tidegate_bpf::testing::plans;
use tidegate_bpf::{BucketParams, Dataplane};
use tidegate_config::{Cookie, RuleConfig};
use tidegate_model::totals::Totals as _;
use tidegate_policy::{Action, Reason};
use tidegate_units::Rate;

const ADDRESS: &str = "10.77.0.1:80";
const LIMIT: Duration = Duration::from_secs(5);

/// One rule for all requests, which asks for a cookie; one token.
fn start(net: &Net, mode: AttachMode) -> Dataplane {
    let protect = vec![Cookie { name: "session".into(), value: None }];
    let rule = RuleConfig { protect, ..plans::rule("/", Some("all")) };
    let mut plan = plan(vec![net.interface(mode)], Action::Drop);
    plan.config.services[0].requests = Some(plans::requests(&["all"], vec![rule]));
    let mut dataplane = Dataplane::start(&plan).unwrap();
    let rate = Some(Rate::per_second(0.001));
    let one = BucketParams::tokens((0, 0), rate, 1, [0; 3]).unwrap();
    dataplane.set_limits(&[], &[one], 2).unwrap();
    dataplane
}

fn counted(dataplane: &Dataplane, reason: Reason) -> u64 {
    let all = dataplane.request_reasons().unwrap();
    all.iter().find(|r| r.reason == reason).map_or(0, |r| r.count)
}

fn refused(dataplane: &Dataplane) -> u64 {
    dataplane.rule_counts().unwrap().iter().map(|rule| rule.refused).sum()
}

/// Sends a request in these pieces and ends its side; what a server beside it read, and what the
/// client did. The client connects before anybody accepts: where it cannot, nobody waits for it.
fn exchange(net: &Net, listener: &TcpListener, pieces: &[Vec<u8>]) -> (Vec<u8>, String) {
    let address: SocketAddr = ADDRESS.parse().unwrap();
    let mut client = within(&net.client, || TcpStream::connect_timeout(&address, LIMIT).unwrap());
    client.set_read_timeout(Some(LIMIT)).unwrap();
    client.set_nodelay(true).unwrap();
    std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            let mut seen = Vec::new();
            // A refused connection is reset.
            if stream.read_to_end(&mut seen).is_ok() {
                stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").unwrap();
            }
            seen
        });
        for piece in pieces {
            client.write_all(piece).unwrap();
            if pieces.len() > 1 {
                std::thread::park_timeout(Duration::from_millis(2));
            }
        }
        let _ = client.shutdown(std::net::Shutdown::Write);
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        (server.join().unwrap(), answer)
    })
}

/// What is sent, in pieces, and why no rule evaluates it.
fn odd() -> Vec<(&'static str, Vec<Vec<u8>>, Reason)> {
    fn head(more: &str) -> Vec<Vec<u8>> {
        vec![format!("POST / HTTP/1.1\r\nHost: a\r\n{more}\r\n").into_bytes()]
    }
    let bytes = |text: &[u8]| vec![text.to_vec()];
    let slow = head("X: y\r\n")[0].iter().map(|byte| vec![*byte]).collect();
    let cookies: String = (0..300).map(|n| format!("c{n}=1; ")).collect();
    vec![
        ("two lengths", head("Content-Length: 1\r\nContent-Length: 2\r\n"), Reason::NotHttp),
        (
            "a length and chunks",
            head("Content-Length: 1\r\nTransfer-Encoding: chunked\r\n"),
            Reason::NotHttp,
        ),
        ("a length with a sign", head("Content-Length: +1\r\n"), Reason::NotHttp),
        ("white space before a colon", head("X : y\r\n"), Reason::NotHttp),
        ("a folded line", head("X: y\r\n z\r\n"), Reason::NotHttp),
        ("a NUL", head("X: a\0b\r\n"), Reason::NotHttp),
        ("lines without CR", bytes(b"GET / HTTP/1.1\nHost: a\n\n"), Reason::NotHttp),
        ("another version", bytes(b"GET / HTTP/3.0\r\nHost: a\r\n\r\n"), Reason::NotHttp),
        ("noise", bytes(&[0x80, 0xff, 0, 7, 13, 10, 13, 10]), Reason::NotHttp),
        ("HTTP/2", bytes(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), Reason::Http2),
        ("half of a hello", bytes(&[22, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3]), Reason::Tls),
        ("a head of 20 KB", head(&"X-Filler: aaaaaaaaaaaaaaaa\r\n".repeat(700)), Reason::Split),
        ("a line of 20 KB", head(&format!("X: {}\r\n", "a".repeat(20_000))), Reason::Split),
        (
            "a path of 20 KB",
            vec![format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(20_000)).into_bytes()],
            Reason::Split,
        ),
        ("300 cookies", head(&format!("Cookie: {cookies}z=1\r\n")), Reason::Split),
        ("byte by byte", slow, Reason::Split),
    ]
}

/// Nothing of it is refused or changed, whatever the bucket says, and each is counted by its reason;
/// the bucket is empty from the first request on, so that a request that is one is refused, as the last
/// one shows.
#[test]
fn what_is_no_request_that_can_be_evaluated_passes() {
    let net = Net::new();
    let mut dataplane = start(&net, AttachMode::Tcx);
    let listener = within(&net.server, || TcpListener::bind(ADDRESS).unwrap());
    let plain = vec![b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec()];
    let (seen, answer) = exchange(&net, &listener, &plain);
    assert_eq!(seen, plain[0], "the token");
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    for (about, pieces, reason) in odd() {
        dataplane.heartbeat().unwrap(); // the lease
        let before = counted(&dataplane, reason);
        let (seen, answer) = exchange(&net, &listener, &pieces);
        assert_eq!(seen, pieces.concat(), "{about}: what the server read");
        assert!(answer.starts_with("HTTP/1.1 400 "), "{about}: {answer}");
        assert!(counted(&dataplane, reason) > before, "{about}: {:?}", dataplane.request_reasons());
        assert_eq!(refused(&dataplane), 0, "{about}");
    }
    let (seen, answer) = exchange(&net, &listener, &plain);
    assert_eq!((seen.len(), refused(&dataplane)), (0, 1));
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
}

/// Sends frames as they are, and shows those that come: the tag that the kernel has removed from each,
/// and the rest of it.
const RAW: &str = "
import socket, struct, sys
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
link.bind((sys.argv[1], 0))
link.setsockopt(263, 8, 1)  # SOL_PACKET, PACKET_AUXDATA
print('ready', flush=True)
for line in sys.stdin:
    if line.strip() != 'show':
        link.send(bytes.fromhex(line))
        continue
    link.settimeout(5)
    while True:
        frame, more, _, source = link.recvmsg(2048, 256)
        if source[2] == 4:  # PACKET_OUTGOING
            continue
        status, *_, tci, kind = struct.unpack('IIIHHHH', more[0][2][:20])
        print(tci if status & 16 else 'none', frame.hex(), flush=True)
";

struct Raw(Child);

impl Raw {
    fn new(namespace: &Path, interface: &str) -> Self {
        let child = inside(namespace, &["python3", "-c", RAW, interface])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut raw = Self(child.unwrap());
        assert_eq!(raw.line(), "ready");
        raw
    }

    fn send(&mut self, packet: &Packet) {
        let hex: String = packet.bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        self.say(&hex);
    }

    fn say(&mut self, line: &str) {
        writeln!(self.0.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    fn line(&mut self) -> String {
        let out = self.0.stdout.as_mut().unwrap();
        let byte = |out: &mut std::process::ChildStdout| {
            let mut one = [0];
            out.read_exact(&mut one).unwrap();
            one[0]
        };
        let bytes = std::iter::repeat_with(|| byte(out)).take_while(|byte| *byte != b'\n');
        String::from_utf8(bytes.collect()).unwrap()
    }

    /// The next frame with data that comes, and the VLAN it is in.
    fn next_with_data(&mut self) -> (String, Vec<u8>) {
        self.say("show");
        loop {
            let line = self.line();
            let (tag, hex) = line.split_once(' ').unwrap();
            let digits = hex.as_bytes().chunks_exact(2);
            let digits = digits.map(|two| std::str::from_utf8(two).unwrap());
            let frame: Vec<u8> = digits.map(|two| u8::from_str_radix(two, 16).unwrap()).collect();
            // Neighbours are looked for, too.
            if frame[12..14] == [8, 0] && !read_segment(&frame).data.is_empty() {
                return (tag.to_owned(), frame);
            }
        }
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A frame of a VLAN comes to the hook without its tag, which is beside it: the 503 is in that VLAN,
/// too, and well formed. (Nothing on this host is in the VLAN, as on a router that only forwards.)
#[test]
fn an_answer_stays_in_the_vlan_of_its_request() {
    for mode in [AttachMode::Xdp, AttachMode::Tcx, AttachMode::Clsact] {
        stays_in_its_vlan(mode);
    }
}

fn stays_in_its_vlan(mode: AttachMode) {
    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let net = Net::new();
    let mut dataplane = start(&net, mode);
    let (mut client, mut server) = (Raw::new(&net.client, "c0"), Raw::new(&net.server, "s0"));
    // The first takes the token.
    for (port, refused_then) in [(40_000, 0), (40_001, 1)] {
        dataplane.heartbeat().unwrap(); // the lease
        let up = || eth().vlan(7).ipv4().tcp(port, 80);
        let down = eth().vlan(7).ipv4().from4(SERVER4.octets()).to4(CLIENT4.octets());
        let offered = dataplane.totals(0).unwrap().offered;
        client.send(&up().seq(100).flags(SYN));
        wait_for("the SYN is seen", || dataplane.totals(0).unwrap().offered > offered);
        server.send(&down.tcp(80, port).seq(500).ack(101).flags(SYN | ACK));
        // Nothing tells when the SYN-ACK has left; until then the ACK is no end of a handshake.
        wait_for("the handshake is seen", || {
            client.send(&up().seq(101).ack(501).flags(ACK));
            dataplane.totals(0).unwrap().open > refused_then
        });
        client.send(&up().seq(101).ack(501).flags(ACK | PSH).data(REQUEST));
        wait_for("the request is evaluated", || {
            let rules = dataplane.rule_counts().unwrap();
            rules[0].admitted == 1 && rules[0].refused == refused_then
        });
    }
    let (tag, frame) = client.next_with_data();
    assert_eq!((tag.as_str(), tags(&frame)), ("7", &[][..]), "the tag is beside the frame");
    let said = read_segment(&frame);
    assert_eq!((said.ports, said.ack.0), ((80, 40_001), 101 + REQUEST.len() as u32));
    assert!(said.data.starts_with(b"HTTP/1.1 503 "));
    let words = support::decode::describe(&frame);
    assert_eq!(words.matches("sum ok").count(), 2, "{words}");
}
