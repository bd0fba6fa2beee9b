// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How often the product began to shed, by its own status, and whether it named the layer that
//! would help where connections carry many requests.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidegate_lab::Product;

/// Between two looks; a state that lasts shorter is not seen.
const LOOK: Duration = Duration::from_millis(200);

/// What the product's warning says before it names the layer.
const LAYER: &str = "The layer that helps";

/// What the status said in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Looked {
    /// How often it began to shed.
    pub(crate) alarms: u32,
    /// Whether a warning named the layer that would help.
    pub(crate) names_layer: bool,
}

/// Runs something while looking at the status; gives its result and what was seen, which is nothing
/// without a product.
pub(crate) fn during<T>(product: Option<&Product>, run: impl FnOnce() -> T) -> (T, Looked) {
    let Some(product) = product else { return (run(), Looked::default()) };
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let counter = scope.spawn(|| {
            let mut count = Count::default();
            // Ends with the run.
            while !over.load(Ordering::Relaxed) {
                if let Ok(status) = product.status() {
                    count.see(&status);
                }
                std::thread::sleep(LOOK);
            }
            count.looked
        });
        let result = run();
        over.store(true, Ordering::Relaxed);
        let lost = Looked { alarms: u32::MAX, names_layer: false };
        (result, counter.join().unwrap_or(lost))
    })
}

/// Whether a service sheds, by a status; nothing when the status does not say.
fn sheds(status: &serde_json::Value) -> Option<bool> {
    let services = status.get("services")?.as_array()?;
    let each = services.iter().map(|s| s.pointer("/limits/why/shedding")?.as_bool());
    each.collect::<Option<Vec<bool>>>().map(|all| all.contains(&true))
}

/// Whether a warning of a status names the layer.
fn names_layer(status: &serde_json::Value) -> bool {
    let warnings = status.get("warnings").and_then(serde_json::Value::as_array);
    let text = |warning: &serde_json::Value| warning.as_str().is_some_and(|w| w.contains(LAYER));
    warnings.is_some_and(|all| all.iter().any(text))
}

/// Beginnings among what was seen.
#[derive(Debug, Default)]
struct Count {
    before: bool,
    looked: Looked,
}

impl Count {
    fn see(&mut self, status: &serde_json::Value) {
        if let Some(shedding) = sheds(status) {
            self.looked.alarms += u32::from(shedding && !self.before);
            self.before = shedding;
        }
        self.looked.names_layer |= names_layer(status);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_alarm_is_a_beginning() {
        let mut count = Count::default();
        let status = |shedding: bool| json!({"services": [{"limits": {"why": {"shedding": shedding}}}], "warnings": ["x"]});
        for shedding in [false, true, true, false, true] {
            count.see(&status(shedding));
        }
        assert_eq!(count.looked, Looked { alarms: 2, names_layer: false });
    }

    /// Said once is said; other warnings do not name it.
    #[test]
    fn a_warning_names_the_layer() {
        let mut count = Count::default();
        let text = "web: layer: connections carry 20 requests each. The layer that helps: request \
                    rules (5 s)";
        for (warnings, named) in [(json!(["log: full"]), false), (json!([text]), true)] {
            count.see(&json!({"services": [], "warnings": warnings}));
            assert_eq!(count.looked.names_layer, named);
        }
        count.see(&json!({"warnings": []}));
        assert!(count.looked.names_layer);
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
