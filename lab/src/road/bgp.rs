// SPDX-License-Identifier: Apache-2.0 OR MIT
//! FlowSpec on the road: S0's daemon announces its limit to R3, which is not ours (BIRD); R2's daemon has what R3
//! sends, and enforces it.
//!
//! ```text
//!  R2 tidegate ─ gobgpd ══ BGP ══ R3 BIRD ══ BGP ══ gobgpd | exabgp ─ tidegate S0
//!  AS 65003                       AS 65002                             AS 65001
//! ```

use super::{BGP, Road, RoadHost};
use crate::error::Result;
use crate::graph::{End, address};
use crate::lab::START_LIMIT;
use crate::os;
use crate::process::Managed;
use crate::server::listens;
use serde_json::{Value, json};

/// Links on which R3 has sessions, to R2 and to S0.
const TO_R2: usize = 4;
const TO_S0: usize = 5;
/// Of S0, R3 and R2.
const AS: [u32; 3] = [65_001, 65_002, 65_003];
/// Where S0 is.
const SERVERS: &str = "10.64.5.0/24";

/// R3's BIRD; ended by drop.
#[derive(Debug)]
pub struct Bird(#[expect(dead_code, reason = "ends it by drop")] Managed);

impl Road<'_> {
    /// Starts BIRD on R3 and waits until it listens.
    ///
    /// # Errors
    /// When it does not.
    pub fn bird(&self) -> Result<Bird> {
        let dir = self.lab.private_dir("bird")?;
        let (file, control) = (dir.join("bird.conf"), dir.join("bird.ctl"));
        os::write(&file, configuration())?;
        let (file, control) = (os::text(&file), os::text(&control));
        let words = ["bird", "-f", "-c", &file, "-s", &control];
        let process = self.lab.start_beside(self.net(RoadHost::R3), "bird", &words)?;
        let (pid, log) = (process.pid(), process.log().to_path_buf());
        os::wait_or_fail("BIRD to listen", START_LIMIT, Some(&log), || listens(pid, BGP))?;
        Ok(Bird(process))
    }
}

/// The section `flowspec` of S0's daemon, with this speaker.
#[must_use]
pub(crate) fn exports(speaker: &str, service: &str) -> Value {
    let (own, router) = (address((TO_S0, false)), address((TO_S0, true)));
    json!({
        "speaker": speaker,
        "as": AS[0],
        "router_id": own.to_string(),
        "peers": {"r3": {"address": router.to_string(), "local": own.to_string(), "as": AS[1]}},
        "export": [{"service": service}],
    })
}

/// That of R2's.
#[must_use]
pub(crate) fn imports() -> Value {
    let (own, router) = (address((TO_R2, true)), address((TO_R2, false)));
    json!({
        "speaker": "gobgp",
        "as": AS[2],
        "router_id": own.to_string(),
        "peers": {"r3": {"address": router.to_string(), "local": own.to_string(), "as": AS[1]}},
        "import": {"peer": "r3", "mode": "enforce", "prefixes": [SERVERS]},
    })
}

/// What `tidegate` on S0 and on R2 are told.
impl super::Sections {
    /// S0 exports the limit of a service by this speaker.
    #[must_use]
    pub fn exporting(mut self, speaker: &str, service: &str) -> Self {
        self.others.insert("flowspec".into(), exports(speaker, service));
        self
    }

    /// R2 imports, and enforces at XDP.
    #[must_use]
    pub fn importing(mut self) -> Self {
        self.xdp = true;
        self.others.insert("flowspec".into(), imports());
        self
    }
}

fn configuration() -> String {
    let [server, router, other] = AS;
    let session = |name: &str, (link, near): End, peer: u32, channels: &str| {
        format!(
            "protocol bgp {name} {{ local {} as {router}; neighbor {} as {peer}; passive yes; hold time 9; {channels} }}\n",
            address((link, near)),
            address((link, !near))
        )
    };
    let takes = "flow4 { table f4; import all; export none; };";
    let gives = "ipv4 { table r4; import none; export all; next hop self; }; \
                 flow4 { table f4; import none; export all; };";
    let (server, other) = (
        session("server", (TO_S0, true), server, takes),
        session("importer", (TO_R2, false), other, gives),
    );
    format!(
        "log stderr all;\nrouter id {};\nipv4 table r4;\nflow4 table f4;\nprotocol device {{ }}\n\
         protocol static nets {{ ipv4 {{ table r4; }}; route {SERVERS} blackhole; }}\n{server}{other}",
        address((TO_S0, true))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R3 has a session with each, at the ends of their links.
    #[test]
    fn the_sessions_are_those_of_the_links() {
        let text = configuration();
        for line in [
            "protocol bgp server { local 10.64.5.1 as 65002; neighbor 10.64.5.2 as 65001;",
            "protocol bgp importer { local 10.64.4.2 as 65002; neighbor 10.64.4.1 as 65003;",
        ] {
            assert!(text.contains(line), "{text}");
        }
        assert_eq!(exports("exabgp", "s0")["peers"]["r3"]["address"], json!("10.64.5.1"));
        assert_eq!(imports()["peers"]["r3"]["local"], json!("10.64.4.1"));
    }
}
