// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How often the product began to shed, by its own status.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidegate_lab::Product;

/// Between two looks; a state that lasts shorter is not seen.
const LOOK: Duration = Duration::from_millis(200);

/// Runs something while looking at the status; gives its result and the number of alarms, 0
/// without a product.
pub(crate) fn during<T>(product: Option<&Product>, run: impl FnOnce() -> T) -> (T, u32) {
    let Some(product) = product else { return (run(), 0) };
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let counter = scope.spawn(|| {
            let mut count = Count::default();
            // Ends with the run.
            while !over.load(Ordering::Relaxed) {
                if let Some(shedding) = product.status().ok().as_ref().and_then(sheds) {
                    count.see(shedding);
                }
                std::thread::sleep(LOOK);
            }
            count.alarms
        });
        let result = run();
        over.store(true, Ordering::Relaxed);
        (result, counter.join().unwrap_or(u32::MAX))
    })
}

/// Whether a service sheds, by a status; nothing when the status does not say.
fn sheds(status: &serde_json::Value) -> Option<bool> {
    let services = status.get("services")?.as_array()?;
    let each = services.iter().map(|s| s.pointer("/limits/why/shedding")?.as_bool());
    each.collect::<Option<Vec<bool>>>().map(|all| all.contains(&true))
}

/// Beginnings among what was seen.
#[derive(Debug, Default)]
struct Count {
    before: bool,
    alarms: u32,
}

impl Count {
    fn see(&mut self, shedding: bool) {
        self.alarms += u32::from(shedding && !self.before);
        self.before = shedding;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_alarm_is_a_beginning() {
        let mut count = Count::default();
        for shedding in [false, true, true, false, true] {
            count.see(shedding);
        }
        assert_eq!(count.alarms, 2);
    }

    #[test]
    fn a_status_says_whether_a_service_sheds() {
        let status = |shedding| json!({"services": [{"limits": {"why": {"shedding": shedding}}}]});
        assert_eq!(sheds(&status(json!(true))), Some(true));
        assert_eq!(sheds(&status(json!(false))), Some(false));
        assert_eq!(sheds(&status(json!(null))), None);
        assert_eq!(sheds(&json!({})), None);
    }
}
