// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The screen of `top`: headline, alerts, services, what a router measures, history and reason of the selected
//! service, keys.
//! One function a widget.

use super::View;
use crate::format::plain;
use crate::status::{alerts, headline};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Block, Cell, Paragraph, Row, Sparkline, Table, TableState, Wrap};
use std::collections::VecDeque;
use tidegate_model::snapshot::ServiceState;
use tidegate_telemetry::{COLUMNS, Column, buckets_table, fitting, router_lines};

/// Most alerts that are shown at once.
const ALERTS_MAX: usize = 4;
/// Lines of the history and the reason.
const HISTORY_LINES: u16 = 5;
const REASON_LINES: u16 = 4;
/// Most buckets of the selected service that are shown.
const BUCKETS_MAX: usize = 6;
/// Most lines of what a router measures: its crowds come first, then the busiest destinations.
const ROUTER_MAX: usize = 10;

/// Draws everything.
pub(crate) fn draw(frame: &mut Frame<'_>, view: &View) {
    let alerts = alert_lines(view);
    let buckets = bucket_lines(view);
    let measured = measured_lines(view);
    let [head, alert, table, bucket, router, history, reason, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(alerts.len() as u16),
        Constraint::Min(3),
        Constraint::Length(buckets.len() as u16),
        Constraint::Length(measured.len() as u16),
        Constraint::Length(HISTORY_LINES),
        Constraint::Length(REASON_LINES),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Line::from(headline(&view.snapshot)).bold(), head);
    frame.render_widget(Paragraph::new(alerts), alert);
    services(frame, view, table);
    frame.render_widget(Paragraph::new(buckets), bucket);
    frame.render_widget(Paragraph::new(measured), router);
    if let Some(selected) = view.snapshot.services.get(view.selected) {
        histories(frame, (view, selected), history);
        reasons(frame, selected, reason);
    }
    frame.render_widget(Line::from("q quit   up/down choose a service").dim(), keys);
}

fn alert_lines(view: &View) -> Vec<Line<'static>> {
    let problem = view.problem.iter().map(|t| format!("old figures: {}", plain(t)));
    let lines = problem.chain(alerts(&view.snapshot)).take(ALERTS_MAX);
    lines.map(|l| Line::from(l).fg(Color::Yellow)).collect()
}

/// The buckets of the selected service, if it has request rules; red ones refuse.
fn bucket_lines(view: &View) -> Vec<Line<'static>> {
    let Some(service) = view.snapshot.services.get(view.selected) else { return Vec::new() };
    let Some(requests) = &service.requests else { return Vec::new() };
    let table = buckets_table(&view.snapshot, Some(&service.name));
    let shedding = requests.buckets.iter().map(|bucket| bucket.limits.why.shedding);
    let lines = table.lines().zip(std::iter::once(false).chain(shedding)).enumerate();
    let drawn = lines.map(|(i, (text, shedding))| {
        let line = Line::from(text.to_owned());
        match (i, shedding) {
            (0, _) => line.bold(),
            (_, true) => line.fg(Color::Red),
            (_, false) => line,
        }
    });
    drawn.take(BUCKETS_MAX + 1).collect()
}

/// What a router measures, if it does.
fn measured_lines(view: &View) -> Vec<Line<'static>> {
    let text = router_lines(&view.snapshot);
    let drawn = text.lines().map(|text| {
        let line = Line::from(text.to_owned());
        if text.starts_with("  flash crowd at ") { line.fg(Color::Red) } else { line }
    });
    drawn.take(ROUTER_MAX).collect()
}

/// As wide as its widest cell.
fn widths(rows: &[Vec<String>]) -> Vec<usize> {
    let widest = |(i, column): (usize, &Column)| {
        let cells = rows.iter().map(|r| r[i].chars().count());
        cells.chain([column.title.len()]).max().unwrap_or_default()
    };
    COLUMNS.iter().enumerate().map(widest).collect()
}

fn services(frame: &mut Frame<'_>, view: &View, area: Rect) {
    let states = &view.snapshot.services;
    let texts: Vec<Vec<String>> =
        states.iter().map(|s| COLUMNS.iter().map(|c| (c.cell)(s)).collect()).collect();
    let widths = widths(&texts);
    let kept = fitting(&widths, usize::from(area.width));
    let rows = texts.iter().zip(states).map(|(cells, state)| {
        let cells = kept.iter().map(|i| aligned(cells[*i].clone(), COLUMNS[*i].number));
        Row::new(cells).style(row_style(state))
    });
    let titles = kept.iter().map(|i| aligned(COLUMNS[*i].title.to_owned(), COLUMNS[*i].number));
    let table = Table::new(rows, kept.iter().map(|i| Constraint::Length(widths[*i] as u16)))
        .header(Row::new(titles).style(Modifier::BOLD))
        .row_highlight_style(Modifier::REVERSED)
        .column_spacing(2);
    let mut state = TableState::default().with_selected(Some(view.selected));
    frame.render_stateful_widget(table, area, &mut state);
}

fn aligned(text: String, right: bool) -> Cell<'static> {
    let line = Line::from(text);
    Cell::from(if right { line.right_aligned() } else { line })
}

/// Red sheds, yellow is alarmed and does not shed (yet).
fn row_style(service: &ServiceState) -> Style {
    let why = &service.limits.why;
    match (why.shedding, why.alarmed.is_empty()) {
        (true, _) => Style::new().fg(Color::Red),
        (false, false) => Style::new().fg(Color::Yellow),
        (false, true) => Style::new(),
    }
}

fn histories(frame: &mut Frame<'_>, (view, service): (&View, &ServiceState), area: Rect) {
    let Some(series) = view.history.of(&service.name) else { return };
    let [left, right] =
        Layout::horizontal([Constraint::Percentage(50), Constraint::Percentage(50)]).areas(area);
    let name = plain(&service.name);
    history(frame, (&format!("{name}: offered/s"), &series.offered), left);
    let refused =
        if service.mode == "shadow" { "would be refused/s, at most" } else { "refused/s" };
    history(frame, (&format!("{name}: {refused}"), &series.refused), right);
}

fn history(frame: &mut Frame<'_>, (title, values): (&str, &VecDeque<u64>), area: Rect) {
    let room = usize::from(area.width.saturating_sub(2));
    let newest = values.iter().skip(values.len().saturating_sub(room)).copied();
    let most = values.iter().max().copied().unwrap_or_default();
    let block = Block::bordered().title(format!("{title} (most: {most})"));
    frame.render_widget(Sparkline::default().block(block).data(newest), area);
}

fn reasons(frame: &mut Frame<'_>, service: &ServiceState, area: Rect) {
    let why = &service.limits.why;
    let text = if why.text.is_empty() { "no limit is set".into() } else { plain(&why.text) };
    let block = Block::bordered().title("why");
    frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }).block(block), area);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::history::LOOKS_MAX;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use std::fmt::Write as _;
    use std::path::Path;
    use tidegate_model::Mode;
    use tidegate_model::limits::{ServiceLimits, Why};
    use tidegate_model::router::{CrowdState, DestinationState, RouterState};
    use tidegate_model::signals::{
        AcceptQueue, BucketCounts, BucketSignals, Counts, Family, Reading, Times,
    };
    use tidegate_model::snapshot::{BucketState, InterfaceState, RequestsState, Snapshot};
    use tidegate_units::{Nanos, Rate, Share};

    fn service(name: &str, offered: u64) -> ServiceState {
        let refused = offered.saturating_sub(20);
        let counts = Counts { offered, refused, admitted: offered - refused, ..Counts::default() };
        let mut state =
            ServiceState { name: name.into(), mode: "enforce".into(), ..Default::default() };
        state.signals.period = Nanos::from_millis(100);
        state.signals.balance.counts = Some(Reading::fresh(counts));
        state.signals.time.waiting = Some(Reading::fresh(140));
        state.signals.time.first_byte = Some(Reading::fresh(Times {
            count: 18,
            p99: Nanos::from_millis(450),
            ..Times::default()
        }));
        state.signals.queue.accept = Some(Reading::fresh(AcceptQueue { length: 12, limit: 511 }));
        state.signals.resource.cpu = Some(Reading::fresh(Share::new(0.97)));
        state
    }

    fn snapshot(offered: u64) -> Snapshot {
        let mut shop = service("shop", offered);
        shop.limits = ServiceLimits {
            rate: Some(Rate::per_second(182.0)),
            why: Why {
                shedding: true,
                alarmed: vec![Family::Resource, Family::Queue],
                text:
                    "resource and queue agree: CPU 97 %, accept queue 12 of 511; completions 180/s"
                        .into(),
                ..Why::default()
            },
            ..ServiceLimits::default()
        };
        let mut blog = service("blog", 3);
        blog.mode = "shadow".into();
        let p99 = Nanos::from_millis(12);
        blog.signals.time.first_byte =
            Some(Reading::fresh(Times { count: 3, p99, ..Times::default() }));
        blog.signals.time.waiting = Some(Reading::fresh(2));
        blog.signals.queue.accept = Some(Reading::fresh(AcceptQueue { length: 0, limit: 511 }));
        blog.signals.resource.cpu = Some(Reading::fresh(Share::new(0.2)));
        Snapshot {
            version: "0.1.0".into(),
            now: Nanos::from_secs(3700),
            config_generation: 1,
            limits_generation: 12,
            interfaces: vec![InterfaceState {
                name: "eth0".into(),
                attached: "xdp".into(),
                ..InterfaceState::default()
            }],
            services: vec![shop, blog],
            ..Snapshot::default()
        }
    }

    fn screen(view: &View, (width, height): (u16, u16)) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, view)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let rows = buffer.content.chunks(usize::from(width.max(1)));
        let lines = rows.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>());
        lines.map(|l| l.trim_end().to_owned() + "\n").collect()
    }

    /// A screen as a figure, for pages that are read without a terminal.
    fn figure(screen: &str) -> String {
        const CHAR_WIDTH: usize = 8;
        // As high as the glyphs are: bars of several lines touch.
        const LINE_HEIGHT: usize = 15;
        let columns = screen.lines().map(|line| line.chars().count()).max().unwrap_or_default();
        let width = (columns + 2) * CHAR_WIDTH;
        let height = (screen.lines().count() + 1) * LINE_HEIGHT;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\">\n<rect width=\"{width}\" height=\"{height}\" \
             fill=\"#1b1f27\"/>\n<g font-family=\"monospace\" font-size=\"13.2\" fill=\"#e6e6e6\">\n"
        );
        for (at, line) in screen.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
            // Whatever the font is, a character is as wide as all others.
            let (length, y) = (line.chars().count() * CHAR_WIDTH, (at + 1) * LINE_HEIGHT);
            let text = line.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
            let _ = writeln!(
                svg,
                "<text x=\"{CHAR_WIDTH}\" y=\"{y}\" textLength=\"{length}\" \
                 lengthAdjust=\"spacingAndGlyphs\" xml:space=\"preserve\">{text}</text>"
            );
        }
        svg + "</g>\n</svg>\n"
    }

    fn golden(name: &str, found: &str) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
        if std::env::var_os("TIDEGATE_BLESS").is_some() {
            std::fs::write(&path, found).unwrap();
        }
        let wanted = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(wanted == found, "{name} is not up to date (TIDEGATE_BLESS=1 writes it):\n{found}");
    }

    #[test]
    fn the_screen_is_what_it_was() {
        let mut view = View::default();
        for i in 0..120 {
            view.update(snapshot(20 + i % 40));
        }
        golden("top.txt", &screen(&view, (116, 18)));
        golden("top-narrow.txt", &screen(&view, (80, 18)));
        golden("../../../../docs/figures/top.svg", &figure(&screen(&view, (100, 15))));
    }

    #[test]
    fn the_buckets_of_the_selected_service_have_a_panel() {
        let bucket = |name: &str, offered| {
            let counts = BucketCounts { offered: [0, offered, 0], ..BucketCounts::default() };
            let counts = Some(Reading::fresh(counts));
            BucketState {
                name: name.into(),
                resource: "cpu".into(),
                controller: "p".into(),
                signals: BucketSignals { counts, ..BucketSignals::default() },
                ..BucketState::default()
            }
        };
        let mut view = View::default();
        let mut rules = snapshot(60);
        rules.services[0].requests = Some(RequestsState {
            mode: "enforce".into(),
            buckets: (0..BUCKETS_MAX + 3).map(|i| bucket(&format!("b{i}"), i as u64)).collect(),
            ..RequestsState::default()
        });
        view.update(rules);
        let shown = screen(&view, (116, 24));
        golden("top-buckets.txt", &shown);
        assert!(shown.contains("b5") && !shown.contains("b6"), "bounded: {shown}");
        view.selected = 1;
        assert!(!screen(&view, (116, 24)).contains("bucket"), "the other has none");
    }

    #[test]
    fn what_a_router_measures_has_a_panel() {
        let mut view = View::default();
        let mut router = snapshot(60);
        router.services.pop();
        router.router = Some(RouterState {
            connections: 37,
            connections_max: 65_536,
            sample: 1,
            known: 20,
            known_max: 4096,
            crowds: vec![CrowdState {
                destination: "192.0.2.1:80".into(),
                lasts: Nanos::from_secs(12),
                why: "only its server is slow".into(),
                demand: 75.0,
                slow: 0.61,
                limit: Some(48.2),
                unlimited: String::new(),
                refused: 913,
                reset: 0,
                would_refuse: 0,
                abacus: None,
                hot_spots: Vec::new(),
                part: None,
            }],
            limit_mode: Some(Mode::Enforce),
            all: DestinationState { address: "all".into(), ..DestinationState::default() },
            destinations: (0..20)
                .map(|n| DestinationState {
                    address: format!("192.0.2.{n}:80"),
                    ..DestinationState::default()
                })
                .collect(),
            ..RouterState::default()
        });
        view.update(router);
        let shown = screen(&view, (116, 30));
        golden("top-router.txt", &shown);
        assert!(shown.contains("flash crowd at 192.0.2.1:80"), "{shown}");
        assert!(!shown.contains("192.0.2.19:80"), "bounded: {shown}");
    }

    #[test]
    fn alerts_stand_above_the_table() {
        let mut view = View { selected: 1, ..View::default() };
        let warnings = vec!["the accept queue cannot be read\u{1b}[2J".into()];
        view.update(Snapshot { released: true, warnings, ..snapshot(60) });
        view.problem = Some("no daemon answers".into());
        golden("top-alerts.txt", &screen(&view, (116, 20)));
    }

    #[test]
    fn any_size_can_be_drawn_and_nothing_steers_the_terminal() {
        let mut view = View::default();
        let mut hostile = snapshot(60);
        hostile.services[0].name = "a\u{1b}[31m\n".into();
        view.update(hostile);
        for size in [(1, 1), (3, 2), (20, 5), (80, 24), (300, 100)] {
            assert!(!screen(&view, size).contains('\u{1b}'), "{size:?}");
        }
        screen(&View::default(), (80, 24));
    }

    #[test]
    fn the_history_is_bounded_and_forgets_services_that_are_gone() {
        let mut view = View::default();
        for i in 0..LOOKS_MAX as u64 + 50 {
            view.update(snapshot(20 + i));
        }
        assert_eq!(view.history.of("shop").unwrap().offered.len(), LOOKS_MAX);
        let mut one = snapshot(60);
        one.services.remove(0);
        view.selected = 1;
        view.update(one);
        assert!(view.history.of("shop").is_none());
        assert_eq!(view.selected, 0, "the choice stays on the screen");
    }

    #[test]
    fn keys_choose_and_quit() {
        use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
        let mut view = View::default();
        view.update(snapshot(60));
        let mut press = |code, modifiers| {
            let goes_on = view.key(KeyEvent::new(code, modifiers));
            (goes_on, view.selected)
        };
        let none = KeyModifiers::NONE;
        assert_eq!(press(KeyCode::Down, none), (true, 1));
        assert_eq!(press(KeyCode::Down, none), (true, 1));
        assert_eq!(press(KeyCode::Up, none), (true, 0));
        assert_eq!(press(KeyCode::Char('c'), none), (true, 0));
        assert!(!press(KeyCode::Char('c'), KeyModifiers::CONTROL).0);
        assert!(!press(KeyCode::Char('q'), none).0);
    }
}
