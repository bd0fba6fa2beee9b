// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The conversations.

#[path = "evaders.rs"] // said, as this file is named by its path
mod evaders;
#[path = "ranks.rs"] // said, as this file is named by its path
mod ranks;
#[path = "verdicts.rs"]
mod verdicts;

use super::support::heads::{hello, server_name};
use super::support::packet::{ACK, FIN, PSH, Packet, RST, SYN, eth};
use super::support::talk::host::Rules;
use super::support::talk::{CLIENT_ISN, Segment, Seq, Style, Talk};

/// One conversation.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) style: Style,
    pub(crate) rules: Rules,
    /// Whether every helper call of it fails once.
    pub(crate) fails: bool,
    pub(crate) play: fn(&mut Talk<'_>),
}

/// A GET request for a path.
pub(crate) fn get(path: &str) -> String {
    request("GET", path, "")
}

fn request(method: &str, path: &str, more: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: shop.example\r\n{more}\r\n")
}

/// A 200 with so many bytes of body, of which these are sent at once.
pub(crate) fn ok(length: usize, sent: usize) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{}", "x".repeat(sent))
}

const PLAIN: Style = Style {
    ipv6: false,
    tags: 0,
    stamps: None,
    partial: false,
    ip_options: false,
    router: false,
    defer: false,
    cookie: false,
};

/// Every way a packet may look.
pub(crate) fn styles() -> Vec<Style> {
    let stamps = Some((700, 300));
    vec![
        PLAIN,
        Style { stamps, ..PLAIN },
        Style { tags: 1, ..PLAIN },
        Style { ipv6: true, ..PLAIN },
        Style { ipv6: true, tags: 1, stamps, ..PLAIN },
        Style { tags: 2, stamps, ..PLAIN },
    ]
}

fn case(name: &'static str, play: fn(&mut Talk<'_>)) -> Case {
    Case { name, style: PLAIN, rules: Rules::default(), fails: false, play }
}

impl Case {
    fn style(mut self, style: Style) -> Self {
        self.style = style;
        self
    }

    fn rules(mut self, rules: Rules) -> Self {
        self.rules = rules;
        self
    }

    fn fails(mut self) -> Self {
        self.fails = true;
        self
    }
}

/// All of them.
pub(crate) fn all() -> Vec<Case> {
    [
        first(),
        looks(),
        later(),
        ranks::persistent(),
        ranks::protected(),
        bodies(),
        answers(),
        interim(),
        losses(),
        ends(),
        strangers(),
        unanswered(),
        fast_open(),
        unevaluated(),
        fragments(),
        verdicts::all(),
        evaders::all(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// A client that is refused, and closes as clients do.
fn refused_and_closed(talk: &mut Talk<'_>) {
    talk.open().asks(&get("/busy"));
    talk.takes_answer().ack().fin();
}

/// A handshake's end and a request with the numbers of somebody who sees nothing of the connection,
/// then of somebody who has guessed what the client sends.
fn guesses(talk: &mut Talk<'_>) {
    for seq in [Seq(77_000), talk.client] {
        let bare = Segment { seq, ack: Seq(99_000), flags: ACK, data: vec![] };
        let request = Segment { flags: ACK | PSH, data: get("/busy").into(), ..bare.clone() };
        talk.client_says(bare).client_says(request);
    }
}

/// The last request once more.
fn again(talk: &Talk<'_>, path: &str) -> Segment {
    let data = get(path).into_bytes();
    let seq = talk.client - data.len() as u32;
    Segment { seq, data, ..talk.client_segment(ACK | PSH, b"") }
}

fn first() -> Vec<Case> {
    let defer = Style { defer: true, ..PLAIN };
    let router = Style { router: true, ..PLAIN };
    vec![
        case("a first request is answered with a 503", refused_and_closed).fails(),
        case("the server waits for data before it accepts", refused_and_closed)
            .style(defer)
            .fails(),
        case("the server is another host", refused_and_closed).style(router).fails(),
        case("HEAD gets the head of the 503", |talk| {
            talk.open().asks(&request("HEAD", "/busy", ""));
            talk.takes_answer().ack().fin();
        }),
        case("a rule that resets", |talk| {
            talk.open().asks(&get("/reset"));
            let again = again(talk, "/reset");
            talk.note("whatever became of the RST, the server's stack answers").client_says(again);
        })
        .fails(),
        case("a rule that drops", |talk| {
            talk.open().asks(&get("/drop"));
            let again = again(talk, "/drop");
            talk.wait(1).client_says(again.clone()).wait(31).sweep();
            talk.note("the client gives up").client_says(again);
        })
        .fails(),
        case("a rule that drops, on a router", |talk| {
            talk.open().asks(&get("/drop"));
            let again = again(talk, "/drop");
            talk.wait(1).client_says(again);
        })
        .style(router),
        case("a request with FIN", |talk| {
            talk.open();
            let request = talk.client_segment(ACK | PSH | FIN, get("/busy").as_bytes());
            talk.client += request.data.len() as u32 + 1;
            talk.client_says(request).takes_answer().ack();
        }),
        case("the end of the handshake is lost", |talk| {
            talk.syn().note("the client's ACK is lost").asks(&get("/busy"));
        }),
        case("the end of the handshake is lost, on a router", |talk| {
            talk.syn().note("the client's ACK is lost").asks(&get("/busy"));
        })
        .style(router),
        case("a handshake that was not seen", |talk| {
            (talk.client, talk.server) = (talk.client + 1, talk.server + 1);
            talk.ack().asks(&get("/busy"));
        }),
    ]
}

fn looks() -> Vec<Case> {
    const NAMES: [&str; 6] = [
        "over IPv4, without options",
        "with time stamps",
        "in a VLAN",
        "over IPv6",
        "over IPv6 in a VLAN with time stamps",
        "in a VLAN of a provider's",
    ];
    let styles = NAMES.iter().zip(styles());
    let mut cases: Vec<Case> =
        styles.map(|(name, style)| case(name, refused_and_closed).style(style).fails()).collect();
    cases.extend(options());
    let stamps = Some((700, 300));
    let partial = Style { partial: true, stamps, ..PLAIN };
    let partial6 = Style { partial: true, ipv6: true, ..PLAIN };
    let options = Style { ip_options: true, ..PLAIN };
    let extension = Style { ip_options: true, ipv6: true, ..PLAIN };
    cases.push(case("the device completes checksums", refused_and_closed).style(partial).fails());
    cases.push(case("the same over IPv6", refused_and_closed).style(partial6));
    cases.push(
        case("with IP options", |talk| {
            talk.open().asks(&get("/busy")).answers(&ok(4, 4)).asks(&get("/busy"));
        })
        .style(options),
    );
    cases.push(
        case("behind an IPv6 extension header", |talk| {
            talk.open().asks(&get("/busy"));
        })
        .style(extension),
    );
    cases.push(case("a request of many merged segments", |talk| {
        let body = "y".repeat(20_000);
        let head = request("POST", "/busy", "Content-Length: 20000\r\n");
        talk.open().asks(&(head + &body));
        talk.takes_answer().ack().fin();
    }));
    cases
}

/// A request with these TCP options.
fn optional(talk: &mut Talk<'_>, options: &[u8]) {
    let tcp = eth().ipv4().tcp(40_000, 80).flags(ACK | PSH).options(options);
    let tcp = tcp.seq(talk.client.0).ack(talk.server.0);
    talk.give(&tcp.data(get("/busy").as_bytes()).bytes(), false);
}

/// Time stamps among other options: an answer carries them where they can be found.
fn options() -> Vec<Case> {
    vec![
        case("time stamps behind blocks of bytes that came out of order", |talk| {
            talk.open();
            let mut options = vec![1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2];
            options.extend([8, 10, 0, 0, 2, 188, 0, 0, 1, 44, 1, 1]);
            optional(talk, &options);
        }),
        case("options that end before the time stamps", |talk| {
            talk.open();
            optional(talk, &[1, 0, 8, 10, 0, 0, 2, 188, 0, 0, 1, 44]);
        }),
        case("an option without a length", |talk| {
            talk.open();
            optional(talk, &[30, 0, 8, 10, 0, 0, 2, 188, 0, 0, 1, 44]);
        }),
        case("nothing but padding", |talk| {
            talk.open();
            optional(talk, &[1, 1, 1, 1]);
        }),
    ]
}

fn later() -> Vec<Case> {
    vec![
        case("admitted, then refused on the same connection", |talk| {
            talk.open().asks(&get("/free")).answers(&ok(5, 5)).asks(&get("/busy"));
            talk.takes_answer().ack().fin();
        })
        .fails(),
        case("the next request comes with the acknowledgement", |talk| {
            talk.open().asks(&get("/free")).says(&ok(5, 5)).asks(&get("/busy"));
        }),
        case("the client lacks bytes of the answer", |talk| {
            talk.open().asks(&get("/free")).says(&ok(5, 5));
            let request = talk.client_segment(ACK | PSH, get("/busy").as_bytes());
            let ack = talk.server - 3;
            talk.client += request.data.len() as u32;
            talk.client_says(Segment { ack, ..request });
            talk.answers(&ok(2, 2)).asks(&get("/busy"));
        }),
        case("two requests in a segment", |talk| {
            talk.open().asks(&(get("/busy") + &get("/busy")));
            talk.answers(&ok(1, 1)).answers(&ok(1, 1)).asks(&get("/busy"));
        }),
        case("a request before the answer to the last", |talk| {
            talk.open().asks(&get("/free")).asks(&get("/busy"));
            talk.answers(&ok(1, 1)).answers(&ok(1, 1)).asks(&get("/busy"));
        }),
        case("all that was sent is acknowledged, but the answer goes on", |talk| {
            talk.open().asks(&get("/free")).answers(&ok(10, 5)).asks(&get("/busy"));
            talk.answers("xxxxx").answers(&ok(1, 1));
        }),
        case("the application has written more than was sent", |talk| {
            talk.open().asks(&get("/free")).answers(&ok(5, 5));
            talk.written = Some(talk.server + 100);
            talk.asks(&get("/busy"));
        }),
        case("a request again that was admitted", |talk| {
            talk.open().asks(&get("/free"));
            let again = again(talk, "/free");
            talk.client_says(again.clone()).says(&ok(5, 5)).client_says(again);
            talk.ack().asks(&get("/busy"));
        }),
    ]
}

fn bodies() -> Vec<Case> {
    vec![
        case("an admitted request with its body", |talk| {
            talk.open().asks(&(request("POST", "/free", "Content-Length: 4\r\n") + "body"));
            talk.answers(&ok(1, 1)).asks(&get("/busy"));
        }),
        case("a body in several segments", |talk| {
            talk.open().asks(&(request("POST", "/free", "Content-Length: 9\r\n") + "bod"));
            talk.asks("y bo").asks("dy").answers(&ok(1, 1)).asks(&get("/busy"));
        })
        .fails(),
        case("a chunked body", |talk| {
            let head = request("POST", "/free", "Transfer-Encoding: chunked\r\n");
            talk.open().asks(&(head + "4\r\nbo")).asks("dy\r\n0").asks("\r\n\r\n");
            talk.answers(&ok(1, 1)).asks(&get("/busy"));
        })
        .fails(),
        case("a body after 100 (Continue)", |talk| {
            let more = "Content-Length: 4\r\nExpect: 100-continue\r\n";
            talk.open().asks(&request("POST", "/free", more));
            talk.answers("HTTP/1.1 100 Continue\r\n\r\n").asks("body");
            talk.answers(&ok(1, 1)).asks(&get("/busy"));
        }),
        case("a request that waits for 100 is refused", |talk| {
            let more = "Content-Length: 4\r\nExpect: 100-continue\r\n";
            talk.open().asks(&request("POST", "/busy", more)).takes_answer().ack().fin();
        }),
        case("a body comes after the 503", |talk| {
            talk.open().asks(&(request("POST", "/busy", "Content-Length: 9\r\n") + "bod"));
            talk.asks("y ").wait(1).asks("bo");
            talk.note("the 503 is on its way: it is not sent for each segment");
            talk.takes_answer().asks("dy").note("after it").fin();
        }),
        case("an answer before the end of the body", |talk| {
            talk.open().asks(&(request("POST", "/free", "Content-Length: 9\r\n") + "bod"));
            talk.answers(&ok(1, 1)).asks("y body").asks(&get("/busy"));
        }),
        case("more bytes than the body", |talk| {
            talk.open().asks(&(request("POST", "/free", "Content-Length: 4\r\n") + "bo"));
            talk.asks("dyGET /busy").answers(&ok(1, 1)).asks(&get("/busy"));
        }),
        case("a segment of the body is lost on the way to us", |talk| {
            talk.open().asks(&(request("POST", "/free", "Content-Length: 9\r\n") + "bod"));
            let lost = talk.client_segment(ACK | PSH, b"y b");
            talk.client += 3;
            talk.asks("ody").client_says(lost).answers(&ok(1, 1)).asks(&get("/busy"));
        }),
    ]
}

fn interim() -> Vec<Case> {
    vec![
        case("two interim answers and the answer in one segment", |talk| {
            let interim = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n";
            talk.open().asks(&get("/free")).answers(&format!("{interim}{}", ok(1, 1)));
            talk.note("nobody looked for where it ends").asks(&get("/busy"));
        }),
        case("an interim answer, then the answer", |talk| {
            talk.open().asks(&get("/free"));
            let hints = "HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n";
            talk.answers(hints).answers(&ok(1, 1)).asks(&get("/free"));
            talk.answers(&(hints.to_owned() + &ok(1, 1))).asks(&get("/busy"));
        }),
    ]
}

fn answers() -> Vec<Case> {
    vec![
        case("an answer in several segments", |talk| {
            talk.open().asks(&get("/free")).answers(&ok(9, 3)).answers("xxx").answers("xxx");
            talk.asks(&get("/busy"));
        })
        .fails(),
        case("a chunked answer", |talk| {
            talk.open().asks(&get("/free"));
            talk.answers("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab");
            talk.answers("cde\r").answers("\n0\r\n").answers("\r\n").asks(&get("/busy"));
        })
        .fails(),
        case("a chunked answer in one segment", |talk| {
            talk.open().asks(&get("/free"));
            let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
            talk.answers(&format!("{head}2\r\nab\r\n0\r\n\r\n")).asks(&get("/busy"));
        }),
        case("an answer to HEAD", |talk| {
            talk.open().asks(&request("HEAD", "/free", "")).answers(&ok(900, 0));
            talk.asks(&get("/busy"));
        }),
        case("204 and 304 have no body", |talk| {
            talk.open().asks(&get("/free")).answers("HTTP/1.1 204 No Content\r\n\r\n");
            talk.asks(&get("/free"));
            talk.answers("HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n");
            talk.asks(&get("/busy"));
        }),
        case("an answer that ends with the connection", |talk| {
            talk.open().asks(&get("/free")).answers("HTTP/1.1 200 OK\r\n\r\nabc").answers("def");
            talk.asks(&get("/busy"));
        }),
        case("an answer whose head is in two segments", |talk| {
            talk.open().asks(&get("/free")).answers("HTTP/1.1 200 OK\r\nContent-Le");
            talk.answers("ngth: 1\r\n\r\nx").asks(&get("/busy"));
        }),
        case("another protocol", |talk| {
            talk.open().asks(&request("GET", "/free", "Upgrade: websocket\r\n"));
            talk.answers("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n");
            talk.asks(&get("/busy"));
        }),
        case("bytes that nobody asked for", |talk| {
            talk.open().answers("220 mail.example ESMTP\r\n").asks(&get("/busy"));
        }),
        case("bytes behind an answer", |talk| {
            talk.open().asks(&get("/free")).answers(&ok(3, 5)).asks(&get("/busy"));
        }),
        case("an answer again that was sent before", |talk| {
            talk.open().asks(&get("/free")).says(&ok(5, 5));
            let length = ok(5, 5).len() as u32;
            let again = Segment {
                seq: talk.server - length,
                data: ok(5, 5).into_bytes(),
                ..talk.server_segment(ACK | PSH, b"")
            };
            talk.server_says(again).ack().asks(&get("/busy"));
        }),
        case("a part of an answer went another way", |talk| {
            talk.open().asks(&get("/free")).says(&ok(9, 3));
            talk.server += 3;
            talk.says("xxx").ack().asks(&get("/busy"));
        }),
    ]
}

fn losses() -> Vec<Case> {
    vec![
        case("the 503 is lost", |talk| {
            talk.open().asks(&get("/busy")).note("lost");
            let request = again(talk, "/busy");
            talk.client_says(request.clone()).note("sooner than anybody repeats");
            talk.wait(1).client_says(request.clone()).client_says(request);
            talk.takes_answer().ack().fin();
        })
        .fails(),
        case("the RST of a reset is lost", |talk| {
            talk.open().asks(&get("/reset")).note("lost");
            let request = again(talk, "/reset");
            talk.client_says(request).note("the server's stack answers: there is no socket");
        }),
        case("the RST to another host is lost", |talk| {
            talk.open().asks(&get("/busy")).note("the RST is lost").takes_answer().ack().fin();
        })
        .style(Style { router: true, ..PLAIN }),
        case("a later segment comes first", |talk| {
            talk.open();
            let (front, back) = (request("POST", "/busy", "Content-Length: 4\r\n"), "body");
            let first = talk.client_segment(ACK | PSH, front.as_bytes());
            talk.client += front.len() as u32;
            talk.asks(back).client_says(first).takes_answer().ack().fin();
        }),
        case("what a refusal left is not answered when the kill switch is on", |talk| {
            talk.open().asks(&get("/busy")).note("lost");
            let again = again(talk, "/busy");
            talk.host().release();
            talk.client_says(again).note("the server's stack answers: there is no socket");
        }),
        case("nor when the lease is over", |talk| {
            talk.open().asks(&get("/busy")).note("lost");
            let again = again(talk, "/busy");
            talk.host().silence(9);
            talk.wait(1).client_says(again.clone()).host().silence(10);
            talk.client_says(again);
        }),
        case("nor after 30 s without a packet, when nobody sweeps", |talk| {
            talk.open().asks(&get("/drop"));
            let again = again(talk, "/drop");
            talk.wait(30).client_says(again.clone()).wait(31).client_says(again);
        }),
        case("the SYN-ACK again before the first data", |talk| {
            talk.open();
            let (seq, ack) = (talk.server - 1, talk.client);
            talk.server_says(Segment { seq, ack, flags: SYN | ACK, data: vec![] });
            talk.asks(&get("/busy"));
        }),
    ]
}

fn ends() -> Vec<Case> {
    vec![
        case("the client closes before it has the 503", |talk| {
            talk.open().asks(&get("/busy")).note("on its way").fin();
            talk.takes_answer().ack();
        }),
        case("the client's FIN again", |talk| {
            refused_and_closed(talk);
            let fin = Segment { seq: talk.client - 1, ..talk.client_segment(ACK | FIN, b"") };
            talk.note("our ACK is lost").client_says(fin);
            talk.note("the server's stack answers: there is no socket");
        }),
        case("the client resets", |talk| {
            talk.open().asks(&get("/busy"));
            let reset = talk.client_segment(RST | ACK, b"");
            talk.client_says(reset);
        }),
        case("a RST and an ACK that guess", |talk| {
            talk.open().asks(&get("/busy"));
            let guess = Segment { seq: talk.client + 70_000, ..talk.client_segment(RST, b"") };
            talk.client_says(guess);
            let guess = Segment { ack: talk.server + 70_000, ..talk.client_segment(ACK, b"data") };
            talk.client_says(guess);
        }),
        case("the client uses its port again", |talk| {
            refused_and_closed(talk);
            (talk.client, talk.server) = (Seq(5_000), Seq(9_000));
            talk.syn();
        }),
        case("the client uses its port again, without having closed", |talk| {
            talk.open().asks(&get("/busy"));
            (talk.client, talk.server) = (Seq(5_000), Seq(9_000));
            talk.syn().ack().asks(&get("/busy"));
        }),
        case("the client says nothing more", |talk| {
            talk.open().asks(&get("/busy")).wait(29).sweep().wait(2).sweep();
        }),
        case("the server closes after its answer", |talk| {
            talk.open().asks(&get("/free")).answers(&ok(3, 3));
            let fin = talk.server_segment(ACK | FIN, b"");
            talk.server += 1;
            talk.server_says(fin).asks(&get("/busy"));
        }),
        case("the server resets while it answers", |talk| {
            talk.open().asks(&get("/close")).answers(&ok(9, 3));
            let reset = talk.server_segment(RST | ACK, b"");
            talk.server_says(reset);
        }),
        case("the client resets while the server answers", |talk| {
            talk.open().asks(&get("/close")).answers(&ok(9, 3));
            let reset = talk.client_segment(RST | ACK, b"");
            talk.client_says(reset);
        }),
        case("an answer that ends with the server's FIN", |talk| {
            talk.open().asks(&get("/close")).answers("HTTP/1.0 200 OK\r\n\r\nabc");
            let fin = talk.server_segment(ACK | FIN, b"def");
            talk.server_says(fin);
        }),
        case("a connection that is idle is forgotten", |talk| {
            talk.open().asks(&get("/close")).wait(59).sweep().wait(2).sweep();
        }),
    ]
}

/// Who sees nothing of a connection, and a connection that is not at its beginning.
fn strangers() -> Vec<Case> {
    let router = Style { router: true, ..PLAIN };
    vec![
        case("a stranger speaks for a client whose line was cut, on a router", |talk| {
            talk.open().asks("GET /bu").note("a stranger");
            guesses(talk);
        })
        .style(router),
        case("a stranger speaks for a client that is idle, on a router", |talk| {
            talk.open().wait(61).sweep().note("a stranger");
            guesses(talk);
        })
        .style(router),
        case("the rest of a cut request looks like a request", |talk| {
            talk.open().asks("POST /close HTTP/1.1\r\nHost: sh").ack();
            talk.note("of its body").asks(&get("/busy"));
        }),
        case("a stranger speaks before the server has accepted", |talk| {
            talk.open().wait(61).sweep().note("a stranger");
            let request = talk.client_segment(ACK | PSH, get("/busy").as_bytes());
            talk.client_says(Segment { ack: Seq(99_000), ..request });
        })
        .style(Style { defer: true, ..PLAIN }),
        case("a port is used again, and nobody saw the end of the connection before", |talk| {
            talk.open().asks(&get("/free")).answers(&ok(1, 1));
            (talk.client, talk.server) = (Seq(5_000), Seq(9_000));
            talk.open().asks(&get("/busy"));
        })
        .style(router),
        case("the end of the handshake and a first request went another way", |talk| {
            talk.syn().note("the server has both");
            talk.client += get("/free").len() as u32;
            talk.asks(&get("/busy"));
        }),
        case("a RST that guesses, on a router", |talk| {
            talk.open();
            let far = Segment { seq: talk.client + (2 << 20), ..talk.client_segment(RST, b"") };
            talk.client_says(far);
            let near = Segment { seq: talk.client + 100, ..talk.client_segment(RST, b"") };
            talk.client_says(near);
        })
        .style(router),
    ]
}

/// Fills the table of connections, and goes on with another one.
fn fill(talk: &mut Talk<'_>) {
    for port in 0..64 {
        talk.port = 50_000 + port;
        talk.open();
        (talk.client, talk.server) = (talk.client - 1, talk.server - 1);
    }
    talk.told.clear();
    talk.note("64 connections, all that there is room for");
    talk.port = 40_000;
}

/// The server's SYN-ACK once more, and the client's answer to it.
fn syn_ack_again(talk: &mut Talk<'_>) {
    let (seq, ack) = (talk.server - 1, CLIENT_ISN + 1);
    talk.server_says(Segment { seq, ack, flags: SYN | ACK, data: vec![] }).ack();
}

/// A first request passed and is not answered yet; its connection lost its place, or never had one.
/// Whatever comes then is no first request: what a 503 would answer is the one that is outstanding.
fn unanswered() -> Vec<Case> {
    fn slow(talk: &mut Talk<'_>) {
        talk.open().asks(&get("/free")).wait(61).sweep();
        talk.note("the client acknowledges a probe").ack().asks(&get("/busy"));
    }
    fn goes_on(talk: &mut Talk<'_>) {
        slow(talk);
        talk.answers(&ok(1, 1)).answers(&ok(1, 1)).asks(&get("/busy"));
    }
    /// The SYN-ACK comes again; what acknowledges it lies behind a request that nobody has seen.
    fn behind(talk: &mut Talk<'_>) {
        talk.syn().note("the client's ACK and its request are lost");
        talk.client += get("/free").len() as u32;
        syn_ack_again(talk);
        let first = again(talk, "/free");
        talk.client_says(first).asks(&get("/busy"));
    }
    let router = Style { router: true, ..PLAIN };
    vec![
        case("an answer that takes more than a minute", goes_on).fails(),
        case("an answer that takes more than a minute, on a router", slow).style(router),
        case("a part of a request, and a minute later the rest", |talk| {
            let request = request("POST", "/busy", "Content-Length: 4\r\n");
            talk.open();
            talk.client += request.len() as u32;
            talk.note("its head went another way").asks("body").wait(61).sweep();
            talk.ack().asks(&get("/busy"));
        })
        .style(router),
        case("a request while the table is full, and another when it is not", |talk| {
            fill(talk);
            talk.open().asks(&get("/free")).wait(61).sweep();
            talk.ack().asks(&get("/busy"));
        }),
        case("the ACK of the handshake is lost, the SYN-ACK comes again, on a router", |talk| {
            talk.syn().note("the client's ACK is lost").asks(&get("/free"));
            syn_ack_again(talk);
            talk.asks(&get("/busy"));
        })
        .style(router),
        case("the end of the handshake and the first request are lost", behind),
        case("the same on a router", behind).style(router),
        case("a probe of one byte before the first request is none", |talk| {
            talk.open();
            let probe = Segment { seq: talk.client - 1, ..talk.client_segment(ACK, b"\0") };
            talk.client_says(probe).asks(&get("/busy"));
        }),
        case("the first SYN-ACK went another way, on a router", |talk| {
            let syn = Segment { ack: Seq(0), ..talk.client_segment(SYN, b"") };
            talk.client_says(syn);
            (talk.client, talk.server) = (talk.client + 1, talk.server + 1);
            talk.note("the SYN-ACK is not seen").asks(&get("/free"));
            syn_ack_again(talk);
            talk.asks(&get("/busy"));
        })
        .style(router),
    ]
}

/// A SYN that carries a request.
fn syn_with(talk: &mut Talk<'_>, data: &str) {
    let syn = Segment { ack: Seq(0), ..talk.client_segment(SYN, data.as_bytes()) };
    talk.client_says(syn);
}

/// The server has accepted the data of the SYN.
fn opened_with(talk: &mut Talk<'_>, data: &str) {
    talk.client += data.len() as u32 + 1;
    let syn_ack = talk.server_segment(SYN | ACK, b"");
    talk.server += 1;
    talk.server_says(syn_ack).ack();
}

fn fast_open() -> Vec<Case> {
    let router = Style { router: true, ..PLAIN };
    vec![
        case("a request in the SYN", |talk| {
            syn_with(talk, &get("/free"));
            opened_with(talk, &get("/free"));
            talk.asks(&get("/busy"));
        })
        .fails(),
        case("a request in the SYN, which is sent again without it, on a router", |talk| {
            syn_with(talk, &get("/free"));
            talk.note("the SYN-ACK is lost");
            syn_with(talk, "");
            opened_with(talk, &get("/free"));
            talk.asks(&get("/busy"));
        })
        .style(router),
        case("a request in the SYN is not accepted", |talk| {
            syn_with(talk, &get("/busy"));
            opened_with(talk, "");
            talk.note("the client sends it once more").asks(&get("/busy"));
        }),
        case("the port of a connection with a request in its SYN is used again", |talk| {
            syn_with(talk, &get("/free"));
            opened_with(talk, &get("/free"));
            let reset = talk.client_segment(RST | ACK, b"");
            talk.client_says(reset);
            (talk.client, talk.server) = (Seq(5_000), Seq(9_000));
            talk.open().asks(&get("/busy"));
        }),
    ]
}

/// The first fragment of a request; the parts behind it are not seen as TCP.
fn fragment(talk: &mut Talk<'_>, path: &str) {
    let packet = super::support::packet::eth().ipv4().frag4(0, true).tcp(40_000, 80);
    let packet = packet.seq(talk.client.0).ack(talk.server.0).flags(PSH);
    talk.give(&packet.data(get(path).as_bytes()).bytes(), false);
}

fn fragments() -> Vec<Case> {
    let router = Style { router: true, ..PLAIN };
    vec![
        case("a fragment", |talk| {
            talk.open();
            fragment(talk, "/busy");
        }),
        case("a fragment, and its request again as a whole, on a router", |talk| {
            talk.open();
            fragment(talk, "/busy");
            talk.asks(&get("/busy"));
        })
        .style(router),
        case("a later request in fragments, and again as a whole, on a router", |talk| {
            talk.open().asks(&get("/free")).answers(&ok(1, 1));
            fragment(talk, "/busy");
            talk.asks(&get("/busy"));
        })
        .style(router),
    ]
}

/// TLS, with the name of the server.
fn named(talk: &mut Talk<'_>) {
    talk.open();
    let hello = talk.client_segment(ACK | PSH, &hello(&server_name(b"shop.example"), 32));
    talk.client += hello.data.len() as u32;
    talk.client_says(hello);
}

fn unevaluated() -> Vec<Case> {
    vec![
        case("a request line in two segments", |talk| {
            talk.open().asks("GET /bu").asks("sy HTTP/1.1\r\nHost: a\r\n\r\n").answers(&ok(1, 1));
            talk.asks(&get("/busy"));
        }),
        case("no HTTP", |talk| {
            talk.open().asks("\x01\x02\x03\x04").asks(&get("/busy"));
        }),
        case("HTTP/2", |talk| {
            talk.open().asks("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").asks(&get("/busy"));
        }),
        case("TLS by its server name", named).fails(),
        case("a rule that chooses, of HTTP", refused_and_closed)
            .rules(Rules { auto: true, ..Rules::default() }),
        case("a rule that chooses, of TLS, for a source that was not served", named)
            .rules(Rules { auto: true, ..Rules::default() })
            .fails(),
        case("TLS that is not whole", |talk| {
            talk.open().asks("\x16\x03\x01\x02\x00\x01\x00").asks(&get("/busy"));
        }),
        case("no rule", |talk| {
            talk.open().asks(&get("/else")).answers(&ok(1, 1)).asks(&get("/busy"));
        }),
        case("the table of connections is full", |talk| {
            fill(talk);
            talk.open().asks(&get("/busy"));
        }),
        case("a tunnel", |talk| {
            let connect = "CONNECT shop.example:443 HTTP/1.1\r\nHost: shop.example\r\n\r\n";
            talk.open().asks(connect).answers("HTTP/1.1 200 OK\r\n\r\n").asks(&get("/busy"));
        }),
        case("a port, and an address, that no service has", |talk| {
            let data = get("/busy");
            let to = |packet: Packet, port| packet.tcp(40_000, port).flags(ACK | PSH).ack(9);
            let port = to(eth().ipv4(), 81).data(data.as_bytes()).bytes();
            let address = to(eth().ipv4().to4([192, 0, 2, 99]), 80).data(data.as_bytes()).bytes();
            talk.give(&port, false).give(&address, false);
        }),
    ]
}
