// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Both planes of one host, the kernel's played by a memory.

use super::*;
use crate::controllers;
use std::net::TcpListener;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tidegate_config::{Registry, parse};
use tidegate_gate::{Ask, NoHeaders};
use tidegate_units::{ManualClock, Rate};

/// The rates that were written last, and whether a write fails.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Vec<Option<Rate>>>>, Arc<AtomicBool>);

impl Totals for Memory {
    fn totals(&self, _: usize) -> io::Result<ServiceTotals> {
        Ok(ServiceTotals { offered: 77, ..ServiceTotals::default() })
    }
}

impl Outlet for Memory {
    fn set_limits(
        &mut self,
        _: &Config,
        limits: &Limits,
        _: &Kept,
    ) -> Result<Vec<Refused>, PlaneError> {
        if self.1.load(Relaxed) {
            return Err(PlaneError("refused by the test".into()));
        }
        *self.0.lock().unwrap() = limits.services.iter().map(|service| service.rate).collect();
        Ok(Vec::new())
    }

    fn generation(&self) -> u64 {
        0
    }

    crate::outlet::says_nothing_else!();
}

impl Counters for Memory {
    fn counts(&self, _: &Config) -> Result<Counted, PlaneError> {
        Ok(Counted::default())
    }

    fn request_counts(
        &self,
        _: &Config,
    ) -> Result<(Vec<RequestCounts>, Option<Followed>), PlaneError> {
        Ok((Vec::new(), None))
    }

    fn sources(&self) -> Result<Vec<SourceUse>, PlaneError> {
        Ok(Vec::new())
    }

    fn samples(&mut self, _: &Config, _: usize) -> Result<Vec<Sample>, PlaneError> {
        Ok(Vec::new())
    }
}

impl Lifecycle for Memory {
    fn examine(&self, _: &Config) -> Result<(), PlaneError> {
        Ok(())
    }

    fn apply(&mut self, _: &Config) -> Result<(), PlaneError> {
        Ok(())
    }

    fn commit(&mut self) -> Vec<String> {
        Vec::new()
    }

    fn reassert(&mut self) -> Vec<String> {
        Vec::new()
    }

    fn mend(&mut self) -> Vec<String> {
        Vec::new()
    }

    fn doubts(&self) -> Vec<String> {
        Vec::new()
    }

    fn hooks(&self) -> Vec<InterfaceState> {
        Vec::new()
    }

    fn detach(self: Box<Self>) -> Result<(), PlaneError> {
        Ok(())
    }
}

fn config(listen: std::net::SocketAddr) -> Config {
    let text = format!(
        "interfaces: [{{name: lo}}]\nservices: {{shop: {{mode: enforce, listen: ['*:80']}}}}\ngateways:\n  \
         edge: {{adapter: envoy, listen: '{listen}', routes: [{{service: shop}}]}}\n"
    );
    let config = parse(&text, &Registry::new(["fresh_first"], controllers::NAMES));
    config.unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_socket_that_cannot_be_opened_leaves_the_limits_of_the_kernel_in_force() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = config(taken.local_addr().unwrap());
    let (memory, clock) = (Memory::default(), Arc::new(ManualClock::default()));
    clock.advance(Nanos::from_secs(100));
    let kernel: Option<Box<dyn Plane>> = Some(Box::new(memory.clone()));
    let mut planes = Planes::new((kernel, Gate::new(&config, 1)), &config, clock.clone());
    planes.open(&config);
    let rate = Some(Rate::per_second(5.0));
    let service = ServiceLimits { rate, burst: 5, ..ServiceLimits::default() };
    let limits = Limits { generation: 1, services: vec![service] };
    let write = |planes: &mut Planes| {
        planes.set_limits(&config, &limits, &Kept::default()).unwrap();
        memory.0.lock().unwrap()[0]
    };
    planes.mend();
    assert_eq!(write(&mut planes), None, "the gate limits it");
    clock.advance(Nanos::from_secs(3));
    planes.mend();
    assert!(planes.totals(0).is_err(), "it comes from elsewhere: no difference can be made");
    planes.mend();
    assert_eq!((planes.at_gate(0), write(&mut planes)), (false, rate));
    assert_eq!(planes.totals(0).unwrap().offered, 77, "as the kernel counts");

    // A reload that changes nothing about it leaves it where it is.
    planes.apply(&config).unwrap();
    planes.mend();
    assert_eq!(write(&mut planes), rate);

    drop(taken);
    let opened = (0..1000).any(|_| {
        std::thread::park_timeout(Duration::from_millis(10));
        planes.mend();
        planes.at_gate(0)
    });
    assert!(opened, "{:?}", planes.gateways(&config));
    assert_eq!(write(&mut planes), None);

    // A kernel that cannot be written is no reason for the gate to keep the limits of before.
    memory.1.store(true, Relaxed);
    let service = ServiceLimits {
        rate: Some(Rate::per_second(0.001)),
        burst: 1,
        ..limits.services[0].clone()
    };
    let limits = Limits { generation: 2, services: vec![service] };
    assert!(planes.set_limits(&config, &limits, &Kept::default()).is_err());
    planes.heartbeat().unwrap();
    let passes = || planes.gate.ask(clock.now(), &ask()).passes();
    assert_eq!([passes(), passes()], [true, false]);
}

/// A request to the service.
fn ask() -> Ask<'static> {
    Ask {
        gateway: "edge",
        method: "GET",
        host: None,
        target: "/",
        client: Some(IpAddr::from([198, 18, 0, 1])),
        request_id: None,
        reported_by_id: false,
        share: None,
        turn: None,
        headers: &NoHeaders,
    }
}
