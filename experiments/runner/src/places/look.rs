// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the product says of itself while clients come: how long the accept queue is, and when each
//! of status, /readyz and `check` says that a place is not protected.

use super::scenario::Told;
use serde_json::Value;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidegate_lab::{Lab, Product, Role};
use tidegate_units::{Clock, MonotonicClock, Nanos};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(100);
/// `check` starts a process: so often only.
const CHECK_EVERY: Nanos = Nanos::from_millis(500);

/// What was seen; times by the monotonic clock.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// Length of the accept queue as a share of its limit, at each look.
    pub(super) queue: Vec<(Nanos, f64)>,
    /// SYNs that the product refused.
    pub(super) refused: u64,
    /// When the status said it first.
    pub(super) status: Option<Nanos>,
    /// When /readyz did.
    pub(super) readyz: Option<Nanos>,
    /// When `check` did.
    pub(super) check: Option<Nanos>,
    /// Whether the status and `check` said what to do.
    pub(super) remedy: [bool; 2],
}

/// Who looks, and at what.
pub(super) struct Look<'a> {
    pub(super) lab: &'a Lab,
    pub(super) program: &'a Path,
    pub(super) product: &'a Product,
    pub(super) told: Option<&'a Told>,
}

impl Look<'_> {
    /// Runs something and looks meanwhile.
    pub(super) fn during<T>(&self, run: impl FnOnce() -> T) -> (T, Seen) {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let looker = scope.spawn(|| {
                let (mut seen, mut checked) = (Seen::default(), None);
                // Ends with the run.
                while !over.load(Ordering::Relaxed) {
                    self.once(&mut seen, &mut checked);
                    std::thread::sleep(LOOK);
                }
                seen
            });
            let result = run();
            over.store(true, Ordering::Relaxed);
            (result, looker.join().unwrap_or_default())
        })
    }

    fn once(&self, seen: &mut Seen, checked: &mut Option<Nanos>) {
        let now = MonotonicClock.now();
        let status = self.product.status().unwrap_or_default();
        if let Some(share) = queue(&status) {
            seen.queue.push((now, share));
        }
        let refused = status.pointer("/services/0/totals/refused").and_then(Value::as_u64);
        seen.refused = refused.unwrap_or(seen.refused);
        let Some(told) = self.told else { return };
        let says = |text: &str| told.says.iter().any(|words| text.contains(words.as_str()));
        let remedy = |text: &str| text.contains(told.remedy.as_str());
        let warnings = status.get("warnings").map(ToString::to_string).unwrap_or_default();
        if says(&warnings) {
            seen.status.get_or_insert(now);
            seen.remedy[0] |= remedy(&warnings);
        }
        if seen.readyz.is_none() && self.readyz().is_some_and(|page| says(&page)) {
            seen.readyz = Some(MonotonicClock.now());
        }
        let due = checked.is_none_or(|at| now.since(at) >= CHECK_EVERY);
        if !due || seen.check.is_some() && seen.remedy[1] {
            return;
        }
        *checked = Some(now);
        if let Some(text) = self.check().filter(|text| says(text)) {
            seen.check.get_or_insert(MonotonicClock.now());
            seen.remedy[1] |= remedy(&text);
        }
    }

    /// The page, if it says that the product is not ready.
    fn readyz(&self) -> Option<String> {
        let url = "http://127.0.0.1:7118/readyz";
        let command = ["curl", "-s", "-m", "1", "-w", " %{http_code}", url];
        let page = self.lab.run_in(Role::Server, &command, "").ok()?;
        page.strip_suffix(" 503").map(str::to_owned)
    }

    fn check(&self) -> Option<String> {
        let (program, file) = (self.program.display(), self.product.config().display());
        let line = format!("'{program}' check -c '{file}' 2>&1; true");
        self.lab.run_in(Role::Server, &["sh", "-c", &line], "").ok()
    }
}

/// Length of the accept queue as a share of its limit.
fn queue(status: &Value) -> Option<f64> {
    let queue = status.pointer("/services/0/signals/queue/accept/value")?;
    let of = |name: &str| queue.get(name)?.as_f64();
    Some(of("length")? / of("limit")?.max(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_queue_is_a_share_of_its_limit() {
        let accept = json!({"value": {"length": 32, "limit": 128}, "age": 0});
        let status = json!({"services": [{"signals": {"queue": {"accept": accept}}}]});
        assert_eq!(queue(&status), Some(0.25));
        assert_eq!(queue(&json!({"services": []})), None);
    }
}
