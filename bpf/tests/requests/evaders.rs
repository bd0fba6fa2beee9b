// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What no rule can evaluate: how its sender wrote or sent it takes from a bucket of its own.

use super::super::support::heads::{hello, server_name};
use super::super::support::packet::{ACK, FIN, PSH, RST};
use super::super::support::talk::host::Rules;
use super::super::support::talk::{Segment, Style, Talk};
use super::{Case, PLAIN, case, get, ok, request};

/// The bucket for unevaluable requests is empty, or full.
const EMPTY: Rules = rules(5);
const FULL: Rules = rules(0);

const fn rules(used: u64) -> Rules {
    Rules {
        used: [5, 0],
        unlimited: false,
        reserve: [0, 0],
        unevaluable: Some(used),
        shadow: false,
        canary: 0,
        released: false,
        never: false,
        lease: 0,
        dice: 0,
        auto: false,
    }
}

/// The head of a request with a chunked body.
fn chunked() -> String {
    request("POST", "/free", "Transfer-Encoding: chunked\r\n")
}

/// A first segment that no rule can evaluate, and its client closes as clients do.
fn first(talk: &mut Talk<'_>, data: &str) {
    talk.open().asks(data);
    talk.takes_answer().ack().fin();
}

pub(super) fn all() -> Vec<Case> {
    [
        refused(),
        admitted(),
        turns(),
        bytes(),
        spared(),
        outside(),
        resets(),
        batches(),
        gaps(),
        honest(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn refused() -> Vec<Case> {
    let each = |name, play: fn(&mut Talk<'_>)| case(name, play).rules(EMPTY);
    vec![
        each("evader: a path with an escaped slash", |talk| first(talk, &get("/busy%2Fx"))).fails(),
        each("evader: a path with a semicolon", |talk| first(talk, &get("/free;/../busy"))),
        each("evader: HEAD of such a path gets the head of the 503", |talk| {
            first(talk, &request("HEAD", "/a%2Fb", ""));
        }),
        each("evader: a request line in two segments", |talk| {
            talk.open().asks("GET /bu").asks("sy HTTP/1.1\r\nHost: a\r\n\r\n");
            talk.ack().fin();
        })
        .fails(),
        each("evader: two requests in a segment", |talk| {
            first(talk, &format!("{}{}", get("/free"), get("/busy")));
        }),
        each("evader: requests behind a chunked body, in its segment", |talk| {
            first(talk, &format!("{}1\r\nx\r\n0\r\n\r\n{}", chunked(), get("/busy").repeat(2)));
        })
        .fails(),
        each("evader: a chunked body that servers read in different ways", |talk| {
            first(talk, &format!("{}0\n\n{}", chunked(), get("/busy")));
        }),
        each("evader: HTTP/0.9", |talk| first(talk, "GET /busy\r\n")),
        each("evader: no HTTP at all", |talk| first(talk, "HELO mail.example\r\n")),
        each("evader: the preface of HTTP/2 gets a RST", |talk| {
            talk.open().asks("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        }),
        each("evader: TLS without a name gets a RST, where a rule asks for names", |talk| {
            talk.open();
            let hello = talk.client_segment(ACK | PSH, &hello(b"", 32));
            talk.client_says(hello);
        }),
        each("evader: TLS that is not whole gets a RST, too", |talk| {
            talk.open();
            let hello = hello(&server_name(b"shop.example"), 32);
            let cut = talk.client_segment(ACK | PSH, &hello[..hello.len() - 4]);
            talk.client_says(cut);
        }),
        each("evader: a cookie that a rule asks for is in the second segment", |talk| {
            talk.open().asks("GET /shop HTTP/1.1\r\nHost: a\r\n").asks("Cookie: session=1\r\n\r\n");
        }),
        each("normal forms of a path meet the rule of the path", |talk| {
            first(talk, &get("//x/.././%62us%79?a=b"));
        }),
    ]
}

fn admitted() -> Vec<Case> {
    let each = |name, play: fn(&mut Talk<'_>)| case(name, play).rules(FULL);
    vec![
        each("an ambiguous path is followed while the bucket admits", |talk| {
            talk.open().asks(&get("/a;b")).answers(&ok(5, 5)).asks(&get("/busy"));
        }),
        each("a long head in three segments takes one token", |talk| {
            talk.open().asks("GET /free HTTP/1.1\r\nCookie: a=").asks("bbbb").asks("\r\n\r\n");
            talk.answers(&ok(5, 5));
            talk.asks("GET /fr").asks("ee HTTP/1.1\r\nHost: a\r\n\r\n").answers(&ok(5, 5));
        })
        .fails(),
        each(
            "an answer that is longer than it says ends the evaluation, and nobody evades",
            |talk| {
                talk.open().asks(&get("/free")).says(&ok(9, 3)).answers("more than six");
                talk.asks(&get("/busy"));
            },
        ),
        each("a cut head that a rule evaluates; later turns are unevaluable", |talk| {
            talk.open().asks("GET /free HTTP/1.1\r\nX: a").asks("\r\n\r\n").answers(&ok(5, 5));
            talk.asks(&get("/busy")).answers(&ok(5, 5));
        }),
        each("in shadow it is only counted", |talk| {
            talk.open().asks(&get("/a;b")).answers(&ok(5, 5));
        })
        .rules(Rules { shadow: true, ..EMPTY }),
    ]
}

/// Admits the first request, then takes the tokens away.
fn then_empty(talk: &mut Talk<'_>) {
    talk.host().used(&EMPTY);
    talk.note("the bucket is empty from now on");
}

fn turns() -> Vec<Case> {
    let each = |name, play: fn(&mut Talk<'_>)| case(name, play).rules(FULL);
    vec![
        each("evader: the next turn of a connection that was split", |talk| {
            talk.open().asks("GET /fr").asks("ee HTTP/1.1\r\nHost: a\r\n\r\n").answers(&ok(5, 5));
            then_empty(talk);
            talk.asks(&get("/busy"));
            let again = super::again(talk, "/busy");
            talk.note("both sides are reset; a copy goes on to the stack").client_says(again);
        })
        .fails(),
        each("evader: a second request before the answer", |talk| {
            talk.open().asks(&get("/free"));
            then_empty(talk);
            talk.asks(&get("/busy"));
        }),
        each("evader: a request that begins in the body before it", |talk| {
            talk.open().asks(&request("POST", "/free", "Content-Length: 9\r\n"));
            then_empty(talk);
            let data = format!("123456789{}", get("/busy"));
            talk.asks(&data);
        }),
        each("evader: a request behind the last chunk", |talk| {
            talk.open().asks(&(chunked() + "4\r\nbo"));
            then_empty(talk);
            talk.asks(&format!("dy\r\n0\r\n\r\n{}", get("/busy")));
        })
        .fails(),
        each("evader: no chunk where one should be", |talk| {
            talk.open().asks(&(chunked() + "4\r\nbody\r\n"));
            then_empty(talk);
            talk.asks(&format!("0\n\n{}", get("/busy")));
        }),
        each("evader: a request ahead of the end of the body before it", |talk| {
            talk.open().asks(&request("POST", "/free", "Content-Length: 9\r\n"));
            then_empty(talk);
            let late = talk.client_segment(ACK | PSH, b"12");
            talk.client += 2;
            let data = format!("3456789{}", get("/busy"));
            talk.asks(&data).client_says(late);
        }),
        each("evader: a request that did not come by here", |talk| {
            talk.open().note("the next request, and one behind it, in fragments");
            talk.client += 2 * get("/free").len() as u32;
            talk.answers(&ok(5, 5)).answers(&ok(5, 5));
            then_empty(talk);
            talk.asks(&get("/busy"));
        }),
        each("evader: a byte of the request before it, once more", |talk| {
            talk.open().asks(&get("/free")).answers(&ok(5, 5));
            then_empty(talk);
            let data = format!("\n{}", get("/busy"));
            let seq = talk.client - 1;
            let overlap = Segment { seq, data: data.into(), ..talk.client_segment(ACK | PSH, b"") };
            talk.client_says(overlap);
        }),
        each("evader: bytes of the answer are not acknowledged", |talk| {
            talk.open().asks(&get("/free")).says(&ok(5, 5));
            then_empty(talk);
            let data = get("/busy").into_bytes();
            let lacks =
                Segment { ack: talk.server - 1, data, ..talk.client_segment(ACK | PSH, b"") };
            talk.client_says(lacks.clone());
            talk.note("dropped: it comes again").client_says(lacks);
        }),
    ]
}

/// A segment of one byte is data, unless the server has it.
fn bytes() -> Vec<Case> {
    let each = |name, play: fn(&mut Talk<'_>)| case(name, play).rules(FULL);
    vec![
        each("evader: a byte a segment", |talk| {
            talk.open().asks("G").asks("E").asks("T /free HTTP/1.1\r\nHost: a\r\n\r\n");
            talk.answers(&ok(5, 5));
            then_empty(talk);
            talk.asks("G");
        }),
        each("evader: probes of one byte are no turns, a byte behind them is one", |talk| {
            talk.open().asks("GET /fr").asks("ee HTTP/1.1\r\nHost: a\r\n\r\n").answers(&ok(5, 5));
            then_empty(talk);
            let probe = Segment { seq: talk.client - 1, ..talk.client_segment(ACK, b"\0") };
            talk.client_says(probe.clone()).client_says(probe).asks("G");
        }),
        each("evader: a probe behind what the server has only acknowledged", |talk| {
            talk.open().asks("GET /fr").asks("ee HTTP/1.1\r\nHost: a\r\n\r\n");
            then_empty(talk);
            let early = talk.server_segment(ACK | PSH, b"HTTP/1.1 100 Continue\r\n\r\n");
            let early = Segment { ack: talk.client - 24, ..early };
            talk.server += early.data.len() as u32;
            let bare = talk.server_segment(ACK, b"");
            talk.server_says(early).server_says(bare);
            let probe = Segment { seq: talk.client - 1, ..talk.client_segment(ACK, b"\0") };
            talk.client_says(probe);
        }),
    ]
}

fn spared() -> Vec<Case> {
    let each = |name, rules| {
        case(name, |talk| {
            talk.open().asks(&get("/a%2Fb")).answers(&ok(5, 5));
            talk.asks("GET /bu").asks("sy HTTP/1.1\r\nHost: a\r\n\r\n");
        })
        .rules(rules)
    };
    vec![
        each("evader: exempt", Rules { never: true, ..EMPTY }),
        each("evader: under the kill switch", Rules { released: true, ..EMPTY }),
        each("evader: without a lease", Rules { lease: 11, ..EMPTY }),
        each("without a rule for them they pass", Rules { unevaluable: None, ..EMPTY }),
    ]
}

/// What cannot be turned round is dropped.
fn outside() -> Vec<Case> {
    let options = Style { ip_options: true, ..PLAIN };
    let router = Style { router: true, ..PLAIN };
    vec![
        case("evader: IP options", |talk| {
            talk.open().asks(&get("/free"));
        })
        .style(options)
        .rules(EMPTY),
        case("evader: on a router", |talk| first(talk, &get("/a%2Fb"))).style(router).rules(EMPTY),
        case("evader: a second request before the answer, on a router", |talk| {
            talk.open().asks(&get("/free"));
            then_empty(talk);
            talk.asks(&get("/busy"));
            let again = super::again(talk, "/busy");
            talk.note("dropped: it comes again").client_says(again);
        })
        .style(router)
        .rules(FULL),
        case("evader: a turn on a router is dropped", |talk| {
            talk.open().asks("GET /fr").asks("ee HTTP/1.1\r\nHost: a\r\n\r\n").answers(&ok(5, 5));
            then_empty(talk);
            talk.asks(&get("/busy"));
        })
        .style(router)
        .rules(FULL),
    ]
}

/// A RST so many bytes ahead of the client's next; the server's stack may answer with an ACK.
fn reset_ahead(talk: &mut Talk<'_>, bytes: u32) {
    talk.expected = Some(talk.client);
    let reset = Segment { seq: talk.client + bytes, ..talk.client_segment(RST, b"") };
    talk.client_says(reset);
    talk.expected = None;
}

/// Who resets a connection that lives is not taken for gone.
fn resets() -> Vec<Case> {
    let each = |name, play: fn(&mut Talk<'_>)| case(name, play).rules(FULL);
    let routed = |name, play: fn(&mut Talk<'_>)| {
        case(name, play).rules(FULL).style(Style { router: true, ..PLAIN })
    };
    vec![
        each("evader: a RST that the stack answers with an ACK", |talk| {
            reset_ahead(talk.open(), 1);
            then_empty(talk);
            talk.asks(&get("/busy"));
        })
        .fails(),
        each("evader: such a RST while a request is outstanding", |talk| {
            reset_ahead(talk.open().asks(&get("/free")), 1);
            talk.answers(&ok(5, 5));
            then_empty(talk);
            talk.asks(&get("/busy"));
        }),
        each("evader: a RST before the server has accepted", |talk| {
            reset_ahead(talk.open(), 9);
            then_empty(talk);
            talk.asks(&get("/busy"));
        })
        .style(Style { defer: true, ..PLAIN }),
        each("evader: a RST outside of the window changes nothing", |talk| {
            reset_ahead(talk.open(), 70_000);
            talk.asks(&get("/busy"));
        }),
        each("evader: a RST does not end what evades", |talk| {
            talk.open().asks("GET /fr").asks("ee HTTP/1.1\r\nHost: a\r\n\r\n").answers(&ok(5, 5));
            reset_ahead(talk, 1);
            then_empty(talk);
            talk.asks(&get("/busy"));
        }),
        routed("evader: the same on a router, whatever its number", |talk| {
            talk.open().asks("GET /fr").asks("ee HTTP/1.1\r\nHost: a\r\n\r\n").answers(&ok(5, 5));
            reset_ahead(talk, 0);
            then_empty(talk);
            talk.asks(&get("/busy"));
        }),
        each("a RST that the stack believes", |talk| reset_ahead(talk.open(), 0)),
        each("a RST of a connection whose response could not be followed", |talk| {
            talk.open().asks(&get("/free")).answers("HTTP/1.1 200 OK\r\nContent-Le");
            reset_ahead(talk, 1);
        }),
        routed("the client's next byte is a RST, on a router", |talk| {
            reset_ahead(talk.open().asks(&get("/close")), 0);
        }),
        routed("a FIN, and a RST behind it, on a router", |talk| {
            talk.open().asks(&get("/close")).fin().says(&ok(9, 3));
            reset_ahead(talk, 0);
        }),
        routed("evader: a RST behind a FIN that comes too early, on a router", |talk| {
            talk.open();
            let early = Segment { seq: talk.client + 1, ..talk.client_segment(ACK | FIN, b"") };
            reset_ahead(talk.client_says(early), 1);
            then_empty(talk);
            talk.asks(&get("/busy"));
        }),
    ]
}

/// A request and a RST right behind it, at the number that the stack expected before: it has not
/// taken the request yet, and will find the RST outside of its window.
fn resets_in_batch(talk: &mut Talk<'_>, request: &str) {
    talk.expected = Some(talk.client);
    let reset = talk.client_segment(RST, b"");
    talk.asks(request).client_says(reset);
    talk.expected = None;
}

/// The stack has not taken what came just before a RST, or is only a listener yet.
fn batches() -> Vec<Case> {
    let each = |name, play: fn(&mut Talk<'_>)| case(name, play).rules(FULL);
    let cookie = |name, play: fn(&mut Talk<'_>)| {
        case(name, play).rules(FULL).style(Style { cookie: true, ..PLAIN })
    };
    vec![
        each("evader: a RST behind a request in one batch", |talk| {
            resets_in_batch(talk.open(), &get("/free"));
            talk.answers(&ok(5, 5));
            then_empty(talk);
            talk.asks(&get("/busy"));
        })
        .fails(),
        each("evader: a RST behind a request in one batch, at the number behind it", |talk| {
            talk.open();
            talk.expected = Some(talk.client);
            talk.asks(&get("/free"));
            let reset = talk.client_segment(RST, b"");
            talk.client_says(reset);
        }),
        each("evader: such a RST of a client that evades", |talk| {
            talk.open().asks("GET /fr").asks("ee HTTP/1.1\r\nHost: a\r\n\r\n").answers(&ok(5, 5));
            resets_in_batch(talk, &get("/free"));
            talk.answers(&ok(5, 5));
            then_empty(talk);
            talk.asks(&get("/busy"));
        }),
        each("evader: such a RST before the server has accepted", |talk| {
            resets_in_batch(talk.open(), &get("/free"));
            talk.answers(&ok(5, 5));
            then_empty(talk);
            talk.asks(&get("/busy"));
        })
        .style(Style { defer: true, ..PLAIN }),
        cookie("a RST of a connection that is a cookie yet", |talk| reset_ahead(talk.open(), 0)),
        cookie("evader: one ahead of its next byte", |talk| {
            reset_ahead(talk.open(), 1);
            then_empty(talk);
            talk.style.cookie = false;
            talk.asks(&get("/busy"));
        }),
        cookie("evader: one behind a request that has not made the socket yet", |talk| {
            talk.open();
            let reset = talk.client_segment(RST, b"");
            talk.asks(&get("/free")).client_says(reset);
            talk.style.cookie = false;
            talk.answers(&ok(5, 5)).asks(&get("/busy"));
        }),
    ]
}

/// What the hooks have missed is not the client's doing, though the bucket of evaders is empty.
fn gaps() -> Vec<Case> {
    let each = |name, play: fn(&mut Talk<'_>)| case(name, play).rules(FULL);
    vec![
        each("the hooks were away for a request", |talk| {
            talk.open().asks(&get("/free")).answers(&ok(5, 5));
            talk.note("the hooks are away, and back before the next response");
            talk.client += get("/free").len() as u32;
            talk.missed(1).answers(&ok(5, 5));
            then_empty(talk);
            talk.asks(&get("/busy"));
        }),
        each("the hooks were away for a response", |talk| {
            talk.open()
                .asks(&get("/free"))
                .note("the hooks are away, and back behind the response");
            talk.server += ok(5, 5).len() as u32;
            talk.missed(1);
            then_empty(talk);
            talk.asks(&get("/busy"));
        }),
        each("the rules were gone for a request", |talk| {
            talk.open().asks(&get("/free")).answers(&ok(5, 5)).note("the service has no rules");
            talk.host().rules_of(0);
            talk.asks(&get("/busy")).answers(&ok(5, 5)).asks(&get("/busy")).note("it has again");
            talk.host().rules_of(1);
            talk.missed(1).answers(&ok(5, 5));
            then_empty(talk);
            talk.asks(&get("/busy"));
        }),
        each("the rules of another service were gone", |talk| {
            talk.open().asks(&get("/free")).answers(&ok(5, 5)).missed(2).asks(&get("/busy"));
        }),
    ]
}

/// What the client has not chosen costs it nothing: this bucket is empty.
fn honest() -> Vec<Case> {
    const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let each = |name, play: fn(&mut Talk<'_>)| {
        case(name, play).rules(EMPTY).style(Style { router: true, ..PLAIN })
    };
    vec![
        case("the end of a body goes another way, with the client's FIN", |talk| {
            talk.open().asks(&(request("POST", "/close", "Content-Length: 9\r\n") + "bod"));
            talk.client += 7;
            talk.answers(&ok(3, 3));
        })
        .rules(EMPTY),
        each("a segment of a chunked answer is lost on the way to a router", |talk| {
            talk.open().asks(&get("/free")).answers(&format!("{CHUNKED}2\r\nab\r\n"));
            let lost = talk.server_segment(ACK | PSH, b"2\r\ncd\r\n");
            talk.server += 7;
            talk.answers("0\r\n\r\n").server_says(lost).asks(&get("/busy"));
        }),
        each("the head of a chunked answer is lost on the way to a router", |talk| {
            talk.open().asks(&get("/free"));
            let lost = talk.server_segment(ACK | PSH, CHUNKED.as_bytes());
            talk.server += CHUNKED.len() as u32;
            talk.says("2\r\nab\r\n0\r\n\r\n").server_says(lost).ack().asks(&get("/busy"));
        }),
        each("the head of a counted answer is lost on the way to a router", |talk| {
            talk.open().asks(&get("/free"));
            let head = ok(5, 0);
            let lost = talk.server_segment(ACK | PSH, head.as_bytes());
            talk.server += head.len() as u32;
            talk.says("12345").server_says(lost).ack().asks(&get("/busy"));
        }),
    ]
}
