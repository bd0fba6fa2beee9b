// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A gateway of nginx that really listens, at a Unix socket, in front of the service `shop`.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tidegate_config::{Registry, parse};
use tidegate_gate::{Adapters, Gate};
use tidegate_units::{Clock, MonotonicClock, Nanos};

const SOON: Nanos = Nanos::from_secs(20);

/// Until it is dropped.
pub(crate) struct Listening {
    pub(crate) gate: Arc<Gate>,
    _adapters: Adapters,
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Listening {
    /// The service is enforced.
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("edge");
        let text = format!(
            "services: {{shop: {{mode: enforce}}}}\ngateways: {{edge: {{adapter: nginx, listen: 'unix:{}', \
             completions: 'unix:{}', routes: [{{service: shop}}]}}}}\n",
            path.display(),
            dir.path().join("log").display()
        );
        let config = parse(&text, &Registry::new(["fresh_first"], ["default"])).unwrap();
        let gate = Arc::new(Gate::new(&config, 1));
        gate.tick(MonotonicClock.now());
        let clock: Arc<dyn Clock + Send + Sync> = Arc::new(MonotonicClock);
        let adapters = Adapters::start(Arc::clone(&gate), clock).unwrap();
        adapters.follow(&config.gateways);
        Self { gate, _adapters: adapters, path, _dir: dir }
    }

    /// As a proxy does; what does not come within [`SOON`] is an error.
    pub(crate) fn connect(&self) -> UnixStream {
        let stream = wait_for("the listener is open", || UnixStream::connect(&self.path).ok());
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }
}

pub(crate) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = MonotonicClock.now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(MonotonicClock.now().since(begin) < SOON, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
