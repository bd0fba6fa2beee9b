// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Conversations about whether a refusal is executed: tokens, shadow, kill switch, lease, exceptions.

use super::super::support::talk::Talk;
use super::super::support::talk::host::Rules;
use super::{Case, case, get, ok};

pub(super) fn all() -> Vec<Case> {
    fn twice(talk: &mut Talk<'_>) {
        talk.open().asks(&get("/busy")).answers(&ok(1, 1)).asks(&get("/busy"));
    }
    let rules = Rules::default;
    vec![
        case("a bucket with tokens admits", twice).rules(Rules { used: [4, 0], ..rules() }).fails(),
        case("a bucket without a limit admits, and counts what is offered", twice)
            .rules(Rules { unlimited: true, ..rules() }),
        case("in shadow nothing is refused", twice).rules(Rules { shadow: true, ..rules() }),
        case("the kill switch", twice).rules(Rules { released: true, ..rules() }),
        case("a client that is exempt", twice).rules(Rules { never: true, ..rules() }),
        case("a client comes onto the list while it is connected", |talk| {
            talk.open();
            talk.host().never();
            talk.asks(&get("/busy")).answers(&ok(1, 1)).asks(&get("/busy"));
        }),
        case("no daemon for ten seconds", twice).rules(Rules { lease: 10, ..rules() }),
        case("no daemon for five seconds, and the random number lets it pass", twice)
            .rules(Rules { lease: 5, dice: 0xffff, ..rules() }),
        case("no daemon for five seconds, and the random number refuses it", twice).rules(Rules {
            lease: 5,
            dice: 0,
            ..rules()
        }),
    ]
}
