// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Figures: panels over one kind of x axis, one above the other or side by side, as SVG.

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

/// Width of a figure in pixels.
const WIDTH: u32 = 960;
/// Height of one panel in pixels.
const PANEL_HEIGHT: u32 = 300;
/// Width and height of one panel of several side by side.
const ACROSS: (u32, u32) = (420, 360);
/// Radius of the markers on the points, in pixels.
const MARKER: i32 = 3;
/// Half the width of the feet of an error bar, as a share of the width of the axis.
const FOOT: f64 = 0.006;
/// Colours that are told apart by the colour-blind too (Okabe and Ito). Further lines have them again, dashed.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x55, 0x55, 0x55),
];

/// A figure.
#[derive(Clone, Debug, Default)]
pub struct Figure {
    /// Title above all.
    pub title: String,
    /// Label of the x axis, with its unit.
    pub x_label: String,
    /// Panels from top to bottom, or from left to right.
    pub panels: Vec<Panel>,
    /// Whether the panels stand side by side, as papers print them, with markers on the points.
    pub across: bool,
    /// Whether x is logarithmic.
    pub x_log: bool,
    /// Whether the y labels name the lines already: then there is no legend.
    pub labelled: bool,
}

/// One panel.
#[derive(Clone, Debug, Default)]
pub struct Panel {
    /// Label of the y axis, with its unit.
    pub y_label: String,
    /// Whether y is logarithmic.
    pub log: bool,
    /// Range of y; absent: from 0 to above the highest point.
    pub range: Option<(f64, f64)>,
    /// A dashed level with its label (the capacity, say).
    pub level: Option<(f64, String)>,
    /// The lines.
    pub series: Vec<Series>,
}

/// One line.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// Name in the legend; the same name has the same place, and so colour, in every panel.
    pub name: String,
    /// Points in the order of x.
    pub points: Vec<(f64, f64)>,
    /// Half widths of the error bars, in the order of the points; empty for none.
    pub errors: Vec<f64>,
}

/// Why a figure could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("figure {title:?}: {why}")]
pub struct PlotError {
    title: String,
    why: String,
}

impl Figure {
    /// The figure as SVG text.
    ///
    /// # Errors
    /// When there is nothing to draw.
    pub fn svg(&self) -> Result<String, PlotError> {
        let error = |why: String| PlotError { title: self.title.clone(), why };
        let (x_low, x_high) = self.x_range().ok_or_else(|| error("no points".into()))?;
        let mut text = String::new();
        {
            let root = SVGBackend::with_string(&mut text, self.size()).into_drawing_area();
            root.fill(&WHITE).map_err(|e| error(e.to_string()))?;
            let root =
                root.titled(&self.title, ("sans-serif", 20)).map_err(|e| error(e.to_string()))?;
            let count = self.panels.len();
            let areas = root.split_evenly(if self.across { (1, count) } else { (count, 1) });
            for (i, (panel, area)) in self.panels.iter().zip(&areas).enumerate() {
                let last = i + 1 == self.panels.len();
                let frame = Frame {
                    x: (x_low, x_high),
                    x_log: self.x_log,
                    x_label: if last || self.across { self.x_label.as_str() } else { "" },
                    // The same colours hold everywhere: one legend is enough.
                    legend: (i == 0 && !self.labelled).then(|| self.legend()),
                    markers: self.across,
                };
                panel.draw(area, &frame).map_err(|why| error(why.to_string()))?;
            }
            root.present().map_err(|e| error(e.to_string()))?;
        }
        // the licence line comes with the file, as everywhere
        Ok(text)
    }

    fn size(&self) -> (u32, u32) {
        let count = self.panels.len() as u32;
        if self.across {
            (ACROSS.0 * count.max(1), ACROSS.1 + 40)
        } else {
            (WIDTH, PANEL_HEIGHT * count + 40)
        }
    }

    /// Where the least is in the way: what papers print falls to the right.
    fn legend(&self) -> SeriesLabelPosition {
        if self.across { SeriesLabelPosition::LowerLeft } else { SeriesLabelPosition::MiddleMiddle }
    }

    fn x_range(&self) -> Option<(f64, f64)> {
        let all = || self.panels.iter().flat_map(|p| &p.series).flat_map(|s| &s.points);
        let xs = || all().map(|p| p.0).filter(|x| !self.x_log || *x > 0.0);
        let low = xs().min_by(f64::total_cmp)?;
        let high = xs().max_by(f64::total_cmp)?;
        Some((low, if high > low { high } else { low + 1.0 }))
    }
}

/// What a panel shares with the others.
struct Frame<'a> {
    x: (f64, f64),
    x_log: bool,
    x_label: &'a str,
    legend: Option<SeriesLabelPosition>,
    markers: bool,
}

type Drawn<'a> = Result<(), Box<dyn std::error::Error + 'a>>;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

impl Panel {
    fn draw(&self, area: &Area<'_>, frame: &Frame<'_>) -> Drawn<'_> {
        let ys = || self.series.iter().flat_map(|s| &s.points).map(|p| p.1);
        let level = self.level.iter().map(|(y, _)| *y);
        let high = ys().chain(level).fold(0.0, f64::max);
        if self.log {
            let low = ys().filter(|y| *y > 0.0).fold(f64::INFINITY, f64::min);
            let low = if low.is_finite() { low } else { 1e-3 };
            self.draw_y(area, frame, ((low * 0.8)..(high.max(low) * 1.3)).log_scale())
        } else {
            let (low, high) =
                self.range.unwrap_or((0.0, if high > 0.0 { high * 1.1 } else { 1.0 }));
            self.draw_y(area, frame, low..high)
        }
    }

    fn draw_y<Y>(&self, area: &Area<'_>, frame: &Frame<'_>, y: Y) -> Drawn<'_>
    where
        Y: AsRangedCoord<Value = f64>,
        Y::CoordDescType: ValueFormatter<f64> + Ranged<ValueType = f64>,
    {
        let (low, high) = frame.x;
        if frame.x_log {
            // the points at the ends stay clear of the frame
            self.draw_on(area, frame, (((low * 0.9)..(high * 1.1)).log_scale(), y))
        } else {
            self.draw_on(area, frame, (low..high, y))
        }
    }

    fn draw_on<X, Y>(&self, area: &Area<'_>, frame: &Frame<'_>, (x, y): (X, Y)) -> Drawn<'_>
    where
        X: AsRangedCoord<Value = f64>,
        X::CoordDescType: ValueFormatter<f64> + Ranged<ValueType = f64>,
        Y: AsRangedCoord<Value = f64>,
        Y::CoordDescType: ValueFormatter<f64> + Ranged<ValueType = f64>,
    {
        let foot = if frame.x_label.is_empty() { 24 } else { 44 };
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .set_label_area_size(LabelAreaPosition::Left, 70)
            .set_label_area_size(LabelAreaPosition::Bottom, foot)
            .build_cartesian_2d(x, y)?;
        chart
            .configure_mesh()
            .x_desc(frame.x_label)
            .y_desc(&self.y_label)
            .light_line_style(WHITE)
            .label_style(("sans-serif", 13))
            .axis_desc_style(("sans-serif", 14))
            .x_label_formatter(&|v| crate::judge::short(*v))
            .y_label_formatter(&|v| crate::judge::short(*v))
            .draw()?;
        if let Some((level, label)) = &self.level {
            let line = [(frame.x.0, *level), (frame.x.1, *level)];
            let style = BLACK.mix(0.6).stroke_width(1);
            chart
                .draw_series(DashedLineSeries::new(line, 6, 4, style))?
                .label(label)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        }
        for (i, series) in self.series.iter().enumerate() {
            let style = COLOURS[i % COLOURS.len()].stroke_width(2);
            let dashed = i >= COLOURS.len();
            let shown = |p: &(f64, f64)| (!self.log || p.1 > 0.0) && (!frame.x_log || p.0 > 0.0);
            let points = series.points.iter().copied().filter(shown);
            let drawn = match dashed {
                false => chart.draw_series(LineSeries::new(points.clone(), style))?,
                true => chart.draw_series(DashedLineSeries::new(points.clone(), 8, 5, style))?,
            };
            let long = if dashed { 8 } else { 18 };
            drawn
                .label(&series.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + long, y)], style));
            if frame.markers {
                chart.draw_series(points.map(|p| Circle::new(p, MARKER, style.filled())))?;
            }
            chart
                .draw_series(series.bars(frame).into_iter().map(|b| PathElement::new(b, style)))?;
        }
        if let Some(position) = &frame.legend {
            chart
                .configure_series_labels()
                .position(position.clone())
                .background_style(WHITE.mix(0.85))
                .border_style(BLACK.mix(0.3))
                .label_font(("sans-serif", 13))
                .draw()?;
        }
        Ok(())
    }
}

impl Series {
    /// Error bars as paths.
    fn bars(&self, frame: &Frame<'_>) -> Vec<Vec<(f64, f64)>> {
        let foot = (frame.x.1 - frame.x.0) * FOOT;
        let bar = |(&(x, y), &error): (&(f64, f64), &f64)| {
            let (low, high) = (y - error, y + error);
            let half = if frame.x_log { x * FOOT * 4.0 } else { foot };
            let (left, right) = (x - half, x + half);
            vec![(left, low), (right, low), (x, low), (x, high), (left, high), (right, high)]
        };
        self.points.iter().zip(&self.errors).filter(|(_, e)| **e > 0.0).map(bar).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(points: Vec<(f64, f64)>) -> Figure {
        let series = vec![Series { name: "reject".into(), points, errors: vec![1.0; 3] }];
        let panel = |log| Panel {
            y_label: "goodput, 1/s".into(),
            log,
            range: None,
            level: Some((100.0, "capacity".into())),
            series: series.clone(),
        };
        Figure {
            title: "Survival".into(),
            x_label: "time, s".into(),
            panels: vec![panel(false), panel(true)],
            ..Figure::default()
        }
    }

    /// Title, labels, legend and both panels are in the SVG; zeros do not break the logarithm.
    #[test]
    fn a_figure_says_what_it_shows() {
        let svg = figure(vec![(0.0, 0.0), (1.0, 90.0), (2.0, 99.0)]).svg().unwrap();
        for word in
            ["<svg", "Survival", "time, s", "goodput, 1/s", "reject", "capacity", "polyline"]
        {
            assert!(svg.contains(word), "{word} is missing");
        }
    }

    /// The eighth line has the colour of the first, and is dashed: many short pieces.
    #[test]
    fn more_lines_than_colours_are_told_apart() {
        let line = |n: usize| Series {
            name: format!("line {n}"),
            points: vec![(0.0, 1.0), (1.0, 1.0 + n as f64)],
            errors: Vec::new(),
        };
        let pieces = |lines: usize| {
            let panel = Panel { series: (0..lines).map(line).collect(), ..Panel::default() };
            let figure = Figure { title: "Lines".into(), panels: vec![panel], ..Figure::default() };
            let svg = figure.svg().unwrap();
            svg.matches("stroke=\"#D55E00\"").count()
        };
        assert_eq!(pieces(7), pieces(1));
        assert!(pieces(8) > pieces(7) + 10, "{} and {}", pieces(8), pieces(7));
    }

    /// Side by side, logarithmic in x: every panel has its own x label, points have markers.
    #[test]
    fn panels_stand_side_by_side_as_in_a_paper() {
        let points = vec![(8.0, 1.0), (64.0, 2.0), (512.0, 3.0)];
        let paper = Figure { across: true, x_log: true, ..figure(points) };
        let svg = paper.svg().unwrap();
        assert_eq!(svg.matches("time, s").count(), 2);
        assert!(svg.matches("<circle").count() >= 6, "{}", svg.matches("<circle").count());
        assert!(svg.contains("width=\"840\" height=\"400\""));
    }

    #[test]
    fn nothing_to_draw_is_an_error() {
        assert!(figure(vec![]).svg().is_err());
    }
}
