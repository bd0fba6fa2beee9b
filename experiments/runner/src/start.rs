// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From an experiment's name to a finished folder.

use crate::abacus;
use crate::attacks;
use crate::catalog::Experiment;
use crate::dual;
use crate::gateways;
use crate::netdraino::{self, testbed};
use crate::news;
use crate::places;
use crate::product;
use crate::record;
use crate::rivals;
use crate::servers;
use crate::setting;
use crate::survival::{self, Watch};
use crate::thresholds;
use crate::traffic;
use crate::worlds;
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::path::PathBuf;
use tidegate_lab::Helper;

/// How much of an experiment is run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effort {
    /// All of it.
    #[default]
    Full,
    /// Fewer points and arrivals.
    Quick,
    /// What fits in a few minutes before an audience.
    Demo,
}

impl Effort {
    const fn of<'s, T>(self, full: &'s T, quick: &'s T, demo: &'s T) -> &'s T {
        match self {
            Self::Full => full,
            Self::Quick => quick,
            Self::Demo => demo,
        }
    }
}

/// How to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// How much.
    pub effort: Effort,
    /// `sim` or `lab`; `None` for the one that it runs in.
    pub world: Option<String>,
    /// Seed.
    pub seed: u64,
    /// The tidegate binary.
    pub program: PathBuf,
    /// What the lab starts its own processes with.
    pub helper: Helper,
    /// Every point of an experiment that runs a subset by default.
    pub all: bool,
    /// Where real traces are, for experiments that take them.
    pub data: Option<news::Source>,
    /// Cells by name, `*` standing for anything, of an experiment that has cells.
    pub cell: Option<String>,
}

/// Rows, figures and remarks.
pub type Outcome = survival::Outcome;

/// A parsed scenario.
#[derive(Clone, Debug)]
pub enum Scenario {
    /// See [`survival`].
    Survival(Box<survival::Scenario>),
    /// See [`traffic`].
    Traffic(Box<traffic::Scenario>),
    /// See [`attacks`].
    Attacks(Box<attacks::Scenario>),
    /// See [`record`].
    Record(record::Scenario),
    /// See [`rivals`].
    Rivals(Box<rivals::Scenario>),
    /// See [`places`].
    Places(Box<places::Scenario>),
    /// See [`gateways`].
    Gateways(Box<gateways::Scenario>),
    /// See [`servers`].
    Servers(servers::Scenario),
    /// See [`worlds`].
    Worlds(worlds::Scenario),
    /// See [`abacus`].
    Syn(Box<abacus::Scenario>),
    /// See [`dual`].
    Dual(Box<dual::Scenario>),
    /// See [`dual::refusal`].
    Refusal(dual::refusal::Scenario),
    /// See [`thresholds`].
    Thresholds(Box<thresholds::Scenario>),
    /// See [`news`].
    News(Box<news::Scenario>),
    /// See [`news::overhead`].
    Overhead(news::overhead::Scenario),
    /// See [`netdraino`].
    Netdraino(Box<netdraino::Scenario>),
    /// See [`testbed`].
    Testbed(Box<testbed::Scenario>),
}

impl Scenario {
    /// The worlds that it runs in; the first one unless another is wanted.
    fn worlds(&self) -> &'static [&'static str] {
        match self {
            Self::Survival(_)
            | Self::Attacks(_)
            | Self::Record(_)
            | Self::Rivals(_)
            | Self::Places(_)
            | Self::Gateways(_)
            | Self::Refusal(_)
            | Self::Overhead(_)
            | Self::Testbed(_) => &["lab"],
            Self::Traffic(_) => &["lab", "sim"],
            Self::Servers(_) | Self::Worlds(_) | Self::Syn(_) | Self::Netdraino(_) => &["sim"],
            Self::News(scenario) => scenario.worlds(),
            Self::Thresholds(scenario) => scenario.worlds(),
            Self::Dual(scenario) => scenario.worlds(),
        }
    }
}

#[derive(Deserialize)]
struct Kind {
    kind: String,
}

/// Reads an experiment's scenario.
///
/// # Errors
/// When it is not valid, or of a kind that nobody runs.
pub fn scenario(experiment: &Experiment) -> Result<Scenario> {
    let text = experiment.scenario;
    let place = || format!("scenario.yaml of {}", experiment.name);
    // The whole is read strictly below; here only the kind is wanted.
    let kind: Kind = serde_saphyr::from_str(text).with_context(place)?;
    match kind.kind.as_str() {
        "survival" => Ok(Scenario::Survival(serde_saphyr::from_str(text).with_context(place)?)),
        "traffic" => Ok(Scenario::Traffic(serde_saphyr::from_str(text).with_context(place)?)),
        "attacks" => {
            let scenario: attacks::Scenario = serde_saphyr::from_str(text).with_context(place)?;
            scenario.check().with_context(place)?;
            Ok(Scenario::Attacks(Box::new(scenario)))
        }
        "record" => {
            let scenario: record::Scenario = serde_saphyr::from_str(text).with_context(place)?;
            scenario.check().with_context(place)?;
            Ok(Scenario::Record(scenario))
        }
        "rivals" => {
            let scenario: rivals::Scenario = serde_saphyr::from_str(text).with_context(place)?;
            scenario.check().with_context(place)?;
            Ok(Scenario::Rivals(Box::new(scenario)))
        }
        "places" => Ok(Scenario::Places(Box::new(places::read(text).with_context(place)?))),
        "gateways" => {
            let scenario: gateways::Scenario = serde_saphyr::from_str(text).with_context(place)?;
            scenario.check().with_context(place)?;
            Ok(Scenario::Gateways(Box::new(scenario)))
        }
        "servers" => Ok(Scenario::Servers(serde_saphyr::from_str(text).with_context(place)?)),
        "worlds" => Ok(Scenario::Worlds(serde_saphyr::from_str(text).with_context(place)?)),
        "syn" => {
            let scenario: abacus::Scenario = serde_saphyr::from_str(text).with_context(place)?;
            scenario.check().with_context(place)?;
            Ok(Scenario::Syn(Box::new(scenario)))
        }
        "dual" => {
            let scenario: dual::Scenario = serde_saphyr::from_str(text).with_context(place)?;
            scenario.check().with_context(place)?;
            Ok(Scenario::Dual(Box::new(scenario)))
        }
        "refusal" => {
            let scenario: dual::refusal::Scenario =
                serde_saphyr::from_str(text).with_context(place)?;
            scenario.check().with_context(place)?;
            Ok(Scenario::Refusal(scenario))
        }
        "thresholds" => {
            let scenario = checked(text, thresholds::Scenario::check).with_context(place)?;
            Ok(Scenario::Thresholds(scenario))
        }
        "news" => {
            let scenario = checked(text, news::Scenario::check).with_context(place)?;
            Ok(Scenario::News(scenario))
        }
        "router-overhead" => {
            let scenario = checked(text, news::overhead::Scenario::check).with_context(place)?;
            Ok(Scenario::Overhead(*scenario))
        }
        "netdraino" => {
            let scenario = checked(text, netdraino::Scenario::check).with_context(place)?;
            Ok(Scenario::Netdraino(scenario))
        }
        "testbed" => {
            let scenario = checked(text, testbed::Scenario::check).with_context(place)?;
            Ok(Scenario::Testbed(scenario))
        }
        other => bail!("{}: nobody runs the kind {other:?}", place()),
    }
}

fn checked<T: DeserializeOwned>(text: &str, check: fn(&T) -> Result<()>) -> Result<Box<T>> {
    let scenario: T = serde_saphyr::from_str(text)?;
    check(&scenario)?;
    Ok(Box::new(scenario))
}

/// Runs an experiment.
///
/// # Errors
/// When it does not run in this world, or something in it fails.
pub fn start(experiment: &Experiment, options: &Options, watch: &mut dyn Watch) -> Result<Outcome> {
    let scenario = scenario(experiment)?;
    let worlds = scenario.worlds();
    let world = options.world.as_deref().unwrap_or(worlds[0]);
    if !worlds.contains(&world) {
        bail!("{} runs with --world {} only", experiment.name, worlds.join(" or --world "));
    }
    // Before an hour of measurements, not after.
    let note = if world == "lab" { product::note(&options.program)? } else { None };
    let mut outcome = run(experiment, scenario, (world, options), watch)?;
    outcome.notes.extend(note);
    Ok(outcome)
}

fn run(
    experiment: &Experiment,
    scenario: Scenario,
    (world, options): (&str, &Options),
    watch: &mut dyn Watch,
) -> Result<Outcome> {
    let lab = dual::lab::Options {
        experiment: experiment.name.to_string(),
        program: options.program.clone(),
        helper: options.helper.clone(),
        quick: options.effort != Effort::Full,
        seed: options.seed,
    };
    let part = (options.effort != Effort::Full, options.cell.as_deref());
    match scenario {
        Scenario::Survival(scenario) => survive(experiment, &scenario, options, watch),
        Scenario::Traffic(scenario) => traffic(experiment, &scenario, (world, options), watch),
        Scenario::Attacks(scenario) => {
            attacks::run(&scenario, part, &survivors(experiment, options), watch)
        }
        Scenario::Record(scenario) => {
            record::run(&scenario, part.0, &survivors(experiment, options), watch)
        }
        Scenario::Rivals(scenario) => {
            rivals::run(&scenario, part, &survivors(experiment, options), watch)
        }
        Scenario::Places(scenario) => stand(experiment, &scenario, options, watch),
        Scenario::Gateways(scenario) => {
            gateways::run(&scenario, part, &survivors(experiment, options), watch)
        }
        Scenario::Servers(scenario) => {
            let effort = (options.effort != Effort::Full, options.seed);
            servers::run(&scenario, experiment.name, effort, watch)
        }
        Scenario::Worlds(scenario) => {
            let part = (part.0, options.seed, part.1);
            worlds::run(&scenario, experiment.name, part, watch)
        }
        Scenario::Syn(scenario) => {
            abacus::run(&scenario, &in_virtual_time(experiment, options), watch)
        }
        Scenario::Dual(scenario) => match world {
            "lab" => dual::lab::run(&scenario, &lab, watch),
            _ => dual::sim::run(&scenario, &in_virtual_time(experiment, options), watch),
        },
        Scenario::Refusal(scenario) => dual::refusal::run(&scenario, &lab, watch),
        Scenario::Thresholds(scenario) => match world {
            "lab" => {
                let filter = options.cell.clone();
                let dual::lab::Options { experiment, program, helper, quick, seed } = lab;
                let own =
                    thresholds::lab::Options { experiment, program, helper, quick, seed, filter };
                thresholds::lab::run(&scenario, &own, watch)
            }
            _ => thresholds::run(&scenario, &in_virtual_time(experiment, options), watch),
        },
        Scenario::News(scenario) => crowd(experiment, &scenario, (world, options), watch),
        Scenario::Overhead(scenario) => {
            news::overhead::run(&scenario, part, &survivors(experiment, options), watch)
        }
        Scenario::Netdraino(scenario) => {
            netdraino::run(&scenario, &in_virtual_time(experiment, options), watch)
        }
        Scenario::Testbed(scenario) => {
            testbed::run(&scenario, part, &survivors(experiment, options), watch)
        }
    }
}

fn crowd(
    experiment: &Experiment,
    scenario: &news::Scenario,
    (world, options): (&str, &Options),
    watch: &mut dyn Watch,
) -> Result<Outcome> {
    let data = options.data.as_ref();
    if world == "lab" {
        let part = (options.effort != Effort::Full, options.cell.as_deref());
        return news::lab::run(scenario, part, (&survivors(experiment, options), data), watch);
    }
    news::run(scenario, &in_virtual_time(experiment, options), data, watch)
}

fn in_virtual_time(experiment: &Experiment, options: &Options) -> setting::Options {
    setting::Options {
        experiment: experiment.name.to_string(),
        quick: options.effort != Effort::Full,
        seed: options.seed,
        threads: 0,
    }
}

fn traffic(
    experiment: &Experiment,
    scenario: &traffic::Scenario,
    (world, options): (&str, &Options),
    watch: &mut dyn Watch,
) -> Result<Outcome> {
    let part = traffic::Part {
        quick: options.effort != Effort::Full,
        all: options.all,
        filter: options.cell.clone(),
    };
    if world == "sim" {
        return traffic::sim::run(scenario, &part, (experiment.name, options.seed), watch);
    }
    traffic::run(scenario, &part, &survivors(experiment, options), watch)
}

fn survive(
    experiment: &Experiment,
    scenario: &survival::Scenario,
    options: &Options,
    watch: &mut dyn Watch,
) -> Result<Outcome> {
    let extent = options.effort.of(&scenario.full, &scenario.quick, &scenario.demo);
    survival::run(scenario, extent, &survivors(experiment, options), watch)
}

fn stand(
    experiment: &Experiment,
    scenario: &places::Scenario,
    options: &Options,
    watch: &mut dyn Watch,
) -> Result<Outcome> {
    let extent = options.effort.of(&scenario.full, &scenario.quick, &scenario.demo);
    let part = (extent, options.cell.as_deref());
    places::run(scenario, part, &survivors(experiment, options), watch)
}

fn survivors(experiment: &Experiment, options: &Options) -> survival::Options {
    survival::Options {
        experiment: experiment.name.to_string(),
        program: options.program.clone(),
        helper: options.helper.clone(),
        seed: options.seed,
    }
}
