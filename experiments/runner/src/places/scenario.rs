// SPDX-License-Identifier: Apache-2.0 OR MIT
//! scenario.yaml of an experiment with places.

use crate::survival::ServerSpec;
use anyhow::{Result, ensure};
use serde::Deserialize;
use tidegate_lab::{Foreign, SiteKind};

/// The whole file. Times in seconds, loads as multiples of the measured capacity.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Always `places`.
    pub kind: String,
    /// The server in all places.
    pub server: ServerSpec,
    /// The load before the overload.
    pub before: f64,
    /// The overload.
    pub load: f64,
    /// Clients give up after so long.
    pub patience_s: f64,
    /// A place where the capacity drifts by more, as a share, is run again.
    pub drift_max: f64,
    /// The full run.
    pub full: Extent,
    /// The quick run.
    pub quick: Extent,
    /// All places at once, on a server that only waits: for a test.
    pub demo: Extent,
    /// One after the other.
    pub places: Vec<Place>,
}

/// How much of it is run.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Extent {
    /// Places by name, `*` standing for anything; empty for all.
    #[serde(default)]
    pub places: Vec<String>,
    /// Before the overload.
    pub before_s: f64,
    /// The overload.
    pub load_s: f64,
    /// Its beginning, which does not count.
    pub settle_s: f64,
    /// The overload of a place that is not protected.
    pub told_s: f64,
    /// Windows of a measurement of the capacity.
    pub windows: u32,
    /// Another server.
    #[serde(default)]
    pub server: Option<ServerSpec>,
    /// Responses per second of that server, which then are not measured; all places run at once.
    #[serde(default)]
    pub capacity: Option<f64>,
}

/// One place.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// Its name: the variant.
    pub name: String,
    /// Where the server stands.
    pub site: SiteKind,
    /// The hooks are in the container.
    #[serde(default)]
    pub inside: bool,
    /// The hooks are on this interface of the host, and the service is `*:80` of the host.
    #[serde(default)]
    pub wrong: Option<String>,
    /// There is no tidegate.
    #[serde(default)]
    pub bare: bool,
    /// Programs before ours.
    #[serde(default)]
    pub foreign: Vec<Foreign>,
    /// What happens to the link in the overload.
    #[serde(default)]
    pub change: Option<Change>,
    /// It is not protected; absent: it is.
    #[serde(default)]
    pub told: Option<Told>,
}

/// What is said of a place that is not protected.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Told {
    /// One of these in the status, on /readyz and in `check`.
    pub says: Vec<String>,
    /// What to do, in the status and in `check`.
    pub remedy: String,
}

/// What happens to the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// It goes down, and up again at once.
    DownUp,
    /// Its MTU becomes 1280, and 1500 again a second later.
    Mtu,
    /// It is deleted.
    Deleted,
}

/// Reads scenario.yaml.
///
/// # Errors
/// When it is not valid, or contradicts itself.
pub fn read(text: &str) -> Result<Scenario> {
    let scenario: Scenario = serde_saphyr::from_str(text)?;
    scenario.check()?;
    Ok(scenario)
}

impl Scenario {
    /// Checks what the types do not say.
    ///
    /// # Errors
    /// Names the place.
    pub fn check(&self) -> Result<()> {
        for place in &self.places {
            let silent = place.bare && place.told.is_some();
            ensure!(!silent, "{}: nobody is there to tell", place.name);
            let lost = place.wrong.is_some() || place.change == Some(Change::Deleted);
            ensure!(!lost || place.told.is_some(), "{}: who is told?", place.name);
        }
        for extent in [&self.full, &self.quick, &self.demo] {
            ensure!(extent.settle_s + 2.0 <= extent.load_s, "nothing is left of the overload");
            self.chosen(extent, None)?;
        }
        Ok(())
    }

    /// The places of an extent, or those of a name.
    ///
    /// # Errors
    /// When there is none.
    pub fn chosen(&self, extent: &Extent, filter: Option<&str>) -> Result<Vec<&Place>> {
        let fits = |name: &str| {
            let of = |wanted: &String| crate::judge::fits(wanted, name);
            match filter {
                Some(filter) => crate::judge::fits(filter, name),
                None => extent.places.is_empty() || extent.places.iter().any(of),
            }
        };
        let chosen: Vec<&Place> = self.places.iter().filter(|place| fits(&place.name)).collect();
        ensure!(!chosen.is_empty(), "no place is named {:?}", filter.unwrap_or_default());
        Ok(chosen)
    }
}

impl Place {
    /// How long the overload lasts.
    #[must_use]
    pub const fn load_s(&self, extent: &Extent) -> f64 {
        if self.told.is_some() { extent.told_s } else { extent.load_s }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario() -> Scenario {
        let experiment = crate::catalog::find("product/places").unwrap();
        serde_saphyr::from_str(experiment.scenario).unwrap()
    }

    #[test]
    fn a_place_that_contradicts_itself_is_named() {
        let place = |name: &str| {
            let all = scenario().places;
            all.iter().position(|place| place.name == name).unwrap()
        };
        scenario().check().unwrap();
        let (port, bare) = (place("bridge-port"), place("none"));
        let mut wrong = scenario();
        wrong.places[port].told = None;
        assert!(wrong.check().unwrap_err().to_string().contains("bridge-port"));
        let mut wrong = scenario();
        wrong.places[bare].told = scenario().places[port].told.clone();
        assert!(wrong.check().unwrap_err().to_string().contains("nobody is there"));
        let mut wrong = scenario();
        wrong.quick.places = vec!["no-such".into()];
        assert!(wrong.check().is_err());
    }

    /// Protected places count for goodput, the others for what is said.
    #[test]
    fn every_place_has_its_claim() {
        let all = scenario();
        let experiment = crate::catalog::find("product/places").unwrap();
        let expect: crate::judge::Expect = serde_saphyr::from_str(experiment.expect).unwrap();
        for place in all.places.iter().filter(|place| !place.bare) {
            let metric = if place.told.is_some() { "told_status" } else { "goodput" };
            let claimed = expect.claims.iter().any(|claim| {
                let fits = |of: &String| crate::judge::fits(of, &place.name);
                claim.of.metric == metric && claim.of.variants.iter().any(fits)
            });
            assert!(claimed, "{}: no claim about {metric}", place.name);
        }
    }
}
