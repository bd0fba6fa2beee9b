// SPDX-License-Identifier: Apache-2.0 OR MIT
//! TLS of a gateway's listener: certificates that follow their files, and handshakes that are bounded.
//!
//! Who has not shown a certificate takes no seat from those who have. Of handshakes that are under way
//! there are few, and the oldest makes room for the next: a proxy's ends in a few milliseconds, so it takes
//! many at once to keep one out. What fails is counted, with its reason for people.

use super::Context;
use super::listen::{Arrived, Stream};
use crate::tls::{Loaded, load_tls};
use rustls::pki_types::CertificateDer;
use std::collections::VecDeque;
use std::future::pending;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::time::Duration;
use tidegate_config::GatewayTls;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

/// Most handshakes under way at once.
pub(super) const HALF_OPEN_MAX: usize = 64;
/// Longest handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// How often files are read that cannot be used: a certificate that is half renewed is whole later.
const RETRY: Duration = Duration::from_secs(1);
/// What is said of the files in [`Context::problem`].
const FILES: &str = "tls";

/// The TLS of one listener, or none.
pub(super) struct Secured {
    context: Context,
    tls: Option<watch::Receiver<Option<Loaded>>>,
    /// Who was trusted when those who are seated came.
    authority: Vec<CertificateDer<'static>>,
    handshakes: JoinSet<Option<Box<dyn Stream>>>,
    /// The same, the oldest first.
    half_open: VecDeque<AbortHandle>,
}

impl Secured {
    /// And what has to run beside the listener: it reads the files.
    pub(super) fn new(
        context: &Context,
        alpn: &'static [&'static [u8]],
    ) -> (Self, impl Future<Output = ()> + use<>) {
        let (out, tls) = watch::channel(None);
        let files = context.config.tls.clone();
        let secured = Self {
            context: context.clone(),
            tls: files.as_ref().map(|_| tls),
            authority: Vec::new(),
            handshakes: JoinSet::new(),
            half_open: VecDeque::new(),
        };
        let context = context.clone();
        let follow = async move {
            match files {
                Some(files) => follow((files, alpn), context, out).await,
                None => pending().await,
            }
        };
        (secured, follow)
    }

    /// Somebody has connected. Returned at once where there is no TLS, else by [`Self::next`].
    pub(super) fn enter(&mut self, arrived: Arrived) -> Option<Box<dyn Stream>> {
        let Some(tls) = &self.tls else { return Some(arrived.stream) };
        // Without a certificate nobody can be answered: the proxy passes its request.
        let loaded = tls.borrow().clone()?;
        self.half_open.retain(|handshake| !handshake.is_finished());
        while self.half_open.len() >= HALF_OPEN_MAX {
            let Some(oldest) = self.half_open.pop_front() else { break };
            oldest.abort();
            self.context.refused(None, &format!("{HALF_OPEN_MAX} others were under way"));
        }
        let context = self.context.clone();
        self.half_open.push_back(self.handshakes.spawn(shake(context, loaded, arrived)));
        None
    }

    /// The next whose handshake has ended well. `None`: others are trusted than before, so who was seated
    /// has to show a certificate again.
    pub(super) async fn next(&mut self) -> Option<Box<dyn Stream>> {
        let Self { tls, authority, handshakes, .. } = self;
        tokio::select! {
            stream = shaken(handshakes) => Some(stream),
            () = distrusted(tls.as_mut(), authority) => {
                handshakes.abort_all();
                // Those that have just ended as well.
                while handshakes.try_join_next().is_some() {}
                None
            }
        }
    }
}

async fn shaken(handshakes: &mut JoinSet<Option<Box<dyn Stream>>>) -> Box<dyn Stream> {
    loop {
        match handshakes.join_next().await {
            Some(Ok(Some(stream))) => return stream,
            Some(_) => {}
            None => return pending().await,
        }
    }
}

/// Until the authority is another one.
async fn distrusted(
    tls: Option<&mut watch::Receiver<Option<Loaded>>>,
    authority: &mut Vec<CertificateDer<'static>>,
) {
    let Some(tls) = tls else { return pending().await };
    while tls.changed().await.is_ok() {
        let Some(now) = tls.borrow_and_update().as_ref().map(|loaded| loaded.authority.clone())
        else {
            continue;
        };
        let before = std::mem::replace(authority, now);
        if !before.is_empty() && before != *authority {
            return;
        }
    }
    pending().await
}

async fn shake(context: Context, loaded: Loaded, arrived: Arrived) -> Option<Box<dyn Stream>> {
    let handshake = TlsAcceptor::from(loaded.server).accept(arrived.stream);
    match timeout(HANDSHAKE_MAX, handshake).await {
        Ok(Ok(stream)) => return Some(Box::new(stream)),
        // Probes look whether somebody listens, and leave.
        Ok(Err(error)) if error.kind() == ErrorKind::UnexpectedEof => {}
        Ok(Err(error)) => context.refused(arrived.from, &error.to_string()),
        Err(_) => context.refused(arrived.from, "its handshake took too long"),
    }
    None
}

/// Reads the files at once, whenever a reload says so, and while they cannot be used. What was read before
/// stays until then.
async fn follow(
    (files, alpn): (GatewayTls, &[&[u8]]),
    context: Context,
    out: watch::Sender<Option<Loaded>>,
) {
    let mut reread = context.reread.clone();
    loop {
        reread.mark_unchanged();
        let wait = match load_tls(&files, alpn) {
            Ok(loaded) => {
                context.problem(FILES, None);
                out.send_replace(Some(loaded));
                None
            }
            Err(error) => {
                context.problem(FILES, Some(format!("cannot be served by TLS: {error}")));
                Some(RETRY)
            }
        };
        tokio::select! {
            changed = reread.changed() => if changed.is_err() { return pending().await },
            () = sleep(wait.unwrap_or_default()), if wait.is_some() => {}
        }
    }
}

impl Context {
    /// A connection came to nothing before it said anything: who it was, and why.
    fn refused(&self, from: Option<IpAddr>, why: &str) {
        self.tell(|told| {
            let refused = told.refused.get_or_insert_default();
            refused.handshakes_failed += 1;
            refused.last = match from {
                Some(from) => format!("{from}: {why}"),
                None => why.to_owned(),
            };
        });
    }
}
