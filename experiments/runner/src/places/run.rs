// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs the places: each in a lab of its own, so that nothing is left of the one before.

use super::look::{Look, Seen};
use super::scenario::{Change, Extent, Place, Scenario};
use super::summary::{self, Ran};
use crate::survival::arm::Known;
use crate::survival::bracket::TRIES;
use crate::survival::{Options, Outcome, Watch};
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::cell::RefCell;
use tidegate_lab::{
    Arrive, CapacityOptions, Lab, LabOptions, LoadPlan, LoadReport, Managed, Phase, Product,
    ProductConfig, Role, SERVER_INTERFACE, Script, Server, Site, SiteKind, Stream,
};
use tidegate_units::{Clock, MonotonicClock, Nanos};
use tidegate_workload::{Profile, Segment};

/// The phase that counts.
const COUNTS: &str = "counts";
const STREAM: &str = "crowd";
/// A change comes so long after the overload, and what counts begins so long after the change.
const CHANGE_AFTER_S: f64 = 1.0;
/// How long the link is down, and how long its MTU is another.
const DOWN_S: f64 = 0.2;
const MTU_S: f64 = 1.0;

/// All that a place's run needs.
struct Runs<'a> {
    scenario: &'a Scenario,
    extent: &'a Extent,
    options: &'a Options,
}

/// Runs it; `filter` chooses places by name.
///
/// # Errors
/// When lab, server, product or load fail.
pub fn run(
    scenario: &Scenario,
    (extent, filter): (&Extent, Option<&str>),
    options: &Options,
    watch: &mut dyn Watch,
) -> Result<Outcome> {
    let chosen = scenario.chosen(extent, filter)?;
    let runs = Runs { scenario, extent, options };
    let (mut ran, mut notes) = (Vec::new(), Vec::new());
    let mut outcome = |more: Vec<(Ran, Vec<String>)>| {
        for (one, said) in more {
            ran.push(one);
            notes.extend(said);
        }
        let rows = summary::rows(&options.experiment, &ran, scenario.load);
        Outcome { rows, notes: notes.clone(), ..Outcome::default() }
    };
    if let Some(capacity) = extent.capacity {
        watch.step("all places at once");
        return Ok(outcome(runs.at_once(&chosen, capacity)?));
    }
    let (mut known, mut last) = (None, Outcome::default());
    for place in chosen {
        watch.step(&place.name);
        let (one, found) = runs.steady(place, known).with_context(|| place.name.clone())?;
        known = Some(found);
        last = outcome(vec![one]);
        watch.kept(&last)?;
    }
    Ok(last)
}

impl Runs<'_> {
    /// Each place in a thread; the servers wait only, so that they do not take each other's CPU.
    fn at_once(&self, chosen: &[&Place], capacity: f64) -> Result<Vec<(Ran, Vec<String>)>> {
        let known = Some(Known { capacity, clients: 1 });
        std::thread::scope(|scope| {
            let run = |place: &Place| {
                let done = self.place(place, known).with_context(|| place.name.clone());
                done.map(|(one, _)| one)
            };
            let threads: Vec<_> =
                chosen.iter().map(|place| scope.spawn(move || run(place))).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| match thread.join() {
                Ok(done) => done,
                Err(_) => bail!("a place's thread panicked"),
            };
            threads.into_iter().map(join).collect()
        })
    }

    /// One place, again while the capacity drifts; the last try counts, whatever it was.
    fn steady(&self, place: &Place, known: Option<Known>) -> Result<((Ran, Vec<String>), Known)> {
        let mut void = Vec::new();
        for attempt in 1..=TRIES {
            let ((ran, notes), found) = self.place(place, known)?;
            let drift = ran.drift.unwrap_or_default();
            if drift <= self.scenario.drift_max || attempt == TRIES {
                void.extend(notes);
                return Ok(((ran, void), found));
            }
            let (name, percent) = (&place.name, 100.0 * drift);
            void.push(format!(
                "{name}, try {attempt}: void, the capacity drifted by {percent:.1} %"
            ));
        }
        bail!("no try was made")
    }

    /// One place; what is known of the server's capacity afterwards.
    fn place(&self, place: &Place, known: Option<Known>) -> Result<((Ran, Vec<String>), Known)> {
        let lab = Lab::new(LabOptions::new(self.options.helper.clone())).context("the lab")?;
        let site = lab.site(place.site).context("the place")?;
        let spec = self.extent.server.as_ref().unwrap_or(&self.scenario.server);
        let server = spec.start(&lab, 80, None).context("the server")?;
        let stream = Stream {
            target: site.target(),
            ..server.stream(STREAM, Arrive::Closed { clients: 1 })
        };
        // Where nothing is protected the load only has to be an overload.
        let measured = self.extent.capacity.is_none() && place.told.is_none() || known.is_none();
        let before = match known {
            Some(known) if !measured => known,
            _ => self.capacity(&lab, &stream, known.map_or(0, |known| known.clients))?,
        };
        // A start is told from its begin: what waits for the product to be ready has waited already.
        let started = MonotonicClock.now();
        let product = match place.bare {
            true => None,
            false => Some(self.product(&lab, place, &site, &server)?),
        };
        let (report, seen) = self.overload(&lab, place, (&stream, before), product.as_ref())?;
        product.map_or(Ok(()), Product::stop).context("tidegate does not end")?;
        let mut ran = ran(place, &report, (started, seen))?;
        // Without tidegate the server is still busy with those who have long gone.
        if measured && place.told.is_none() && !place.bare {
            let after = self.capacity(&lab, &stream, before.clients)?.capacity;
            ran.capacity = Some(f64::midpoint(before.capacity, after));
            ran.drift = Some((after / before.capacity - 1.0).abs());
        } else if place.told.is_none() {
            ran.capacity = Some(before.capacity);
        }
        let note = |why: &String| format!("{}: {why}", place.name);
        Ok(((ran, report.void.iter().map(note).collect()), before))
    }

    fn capacity(&self, lab: &Lab, stream: &Stream, clients: u32) -> Result<Known> {
        let options =
            CapacityOptions { windows: self.extent.windows, ..CapacityOptions::default() };
        let found = lab.capacity_of(stream, &options.with_clients(clients));
        let found = found.context("the capacity")?;
        Ok(Known { capacity: found.rate.get(), clients: found.clients })
    }

    fn product(&self, lab: &Lab, place: &Place, site: &Site, server: &Server) -> Result<Product> {
        let others = json!({"interfaces": [interface(place, site)]});
        let services = json!({"web": service(place, site, server)});
        let config = ProductConfig { services, others, ..ProductConfig::one("web", &[]) };
        lab.start_product(&self.options.program, &config).context("tidegate")
    }

    fn overload(
        &self,
        lab: &Lab,
        place: &Place,
        (stream, known): (&Stream, Known),
        product: Option<&Product>,
    ) -> Result<(LoadReport, Option<Seen>)> {
        let foreign = RefCell::new(Vec::<Managed>::new());
        let attach = || {
            let made = place.foreign.iter().map(|one| lab.foreign(*one));
            made.collect::<tidegate_lab::Result<Vec<_>>>().map(|made| foreign.replace(made))
        };
        let mut script = Script::new();
        let begin = self.extent.before_s;
        if place.told.is_none() {
            attach().context("a foreign program")?;
        } else if !place.foreign.is_empty() {
            script = script.at(Nanos::from_secs_f64(begin), "foreign", || attach().map(drop));
        }
        if let Some(change) = place.change {
            script = changes(script, lab, change, begin + CHANGE_AFTER_S);
        }
        let plan = self.plan(place, stream, known.capacity);
        let mut load = || lab.run_script(&plan, &mut script, &mut |_| {});
        let (report, seen) = match product {
            None => (load()?, None),
            Some(product) => {
                let (program, told) = (self.options.program.as_path(), place.told.as_ref());
                let look = Look { lab, program, product, told };
                let (report, seen) = look.during(load);
                (report?, Some(seen))
            }
        };
        if let Some(failed) = report.events.iter().find_map(|event| event.error.as_ref()) {
            bail!("{failed}");
        }
        Ok((report, seen))
    }

    fn plan(&self, place: &Place, stream: &Stream, capacity: f64) -> LoadPlan {
        let (before, load) = (self.extent.before_s, place.load_s(self.extent));
        let seconds = Nanos::from_secs_f64;
        let rates = [self.scenario.before, self.scenario.load];
        let pieces = [(before, rates[0]), (load, rates[1])]
            .map(|(length, rate)| Segment::constant(seconds(length), rate * capacity));
        let arrive = Arrive::poisson(Profile::new(&pieces));
        let changes = if place.change.is_some() { CHANGE_AFTER_S + MTU_S } else { 0.0 };
        let start = before + self.extent.settle_s + changes;
        let end = before + load;
        LoadPlan {
            seed: self.options.seed,
            streams: vec![Stream { arrive, ..stream.clone() }],
            phases: vec![Phase { name: COUNTS.into(), start: seconds(start), end: seconds(end) }],
            timeout: seconds(self.scenario.patience_s),
            ..LoadPlan::default()
        }
    }
}

/// What is done to the link, at its times.
fn changes<'a>(script: Script<'a>, lab: &'a Lab, change: Change, at: f64) -> Script<'a> {
    let link = SERVER_INTERFACE;
    let ip = move |text: String| {
        move || lab.run_in(Role::Server, &["ip", "-batch", "-"], &text).map(drop)
    };
    let when = Nanos::from_secs_f64;
    match change {
        Change::Deleted => script.at(when(at), "deleted", ip(format!("link del {link}\n"))),
        Change::DownUp => {
            // The route goes with the link; whoever manages the network sets it again.
            let up = format!("link set {link} up\nroute replace default via 10.2.0.1\n");
            let script = script.at(when(at), "down", ip(format!("link set {link} down\n")));
            script.at(when(at + DOWN_S), "up", ip(up))
        }
        Change::Mtu => {
            let set = |mtu: u32| ip(format!("link set {link} mtu {mtu}\n"));
            script.at(when(at), "mtu 1280", set(1280)).at(when(at + MTU_S), "mtu 1500", set(1500))
        }
    }
}

fn interface(place: &Place, site: &Site) -> Value {
    if let Some(name) = &place.wrong {
        return json!({"name": name});
    }
    match site.container().filter(|_| place.inside) {
        Some(pid) => json!({"name": "e0", "namespace": format!("pid:{pid}")}),
        None if place.site == SiteKind::Tun => json!({"name": "t0"}),
        None => json!({"name": SERVER_INTERFACE}),
    }
}

/// As an operator writes it, by docs/places.md.
fn service(place: &Place, site: &Site, server: &Server) -> Value {
    let mut service =
        json!({"mode": "enforce", "listen": ["*:80"], "policy": {"action": "reject"}});
    if place.wrong.is_some() {
        return service;
    }
    let port = site.target().port();
    service["listen"] = match place.site {
        _ if place.inside => json!(["*:80"]),
        SiteKind::Host | SiteKind::Tun | SiteKind::Bridge => json!([format!("*:{port}")]),
        SiteKind::Routed | SiteKind::Macvlan => json!([site.target().to_string()]),
    };
    if let Some(pid) = site.container() {
        let group = server.group().path().display();
        service["namespace"] = match place.site {
            SiteKind::Bridge => json!(format!("cgroup:{group}")),
            _ => json!(format!("pid:{pid}")),
        };
    }
    if let Some(inner) = site.inner().filter(|_| !place.inside) {
        service["target"] = json!([inner.to_string()]);
    }
    service
}

fn ran(place: &Place, report: &LoadReport, (started, seen): (Nanos, Option<Seen>)) -> Result<Ran> {
    let found = report.stream(STREAM).and_then(|stream| stream.phase(COUNTS));
    let totals = &found.context("the report lacks what counts")?.totals;
    let seconds = totals.seconds.max(f64::MIN_POSITIVE);
    // From the foreign program's attachment or the link's change on; else from the product's start.
    let changed = report.events.first().map(|event| Nanos::from_secs_f64(event.at));
    let cause = changed.map_or(started, |at| report.started + at);
    let after = |at: Option<Nanos>| {
        let at = at.filter(|at| *at >= cause);
        at.map_or(f64::NAN, |at| at.since(cause).as_secs_f64())
    };
    let counts_from = report.started + Nanos::from_secs_f64(found.map_or(0.0, |phase| phase.start));
    let told = place
        .told
        .as_ref()
        .and(seen.as_ref())
        .map(|seen| ([seen.status, seen.readyz, seen.check].map(after), seen.remedy));
    let queue = seen.iter().flat_map(|seen| &seen.queue);
    Ok(Ran {
        place: place.name.clone(),
        capacity: None,
        drift: None,
        offered: totals.counts.offered as f64 / seconds,
        goodput: totals.goodput,
        refused: totals.refused_share(),
        p99: totals.service.p99,
        queue: queue.filter(|(at, _)| *at >= counts_from).map(|(_, share)| *share).collect(),
        refusals: seen.as_ref().map(|seen| seen.refused),
        told,
    })
}
