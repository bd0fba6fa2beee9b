// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Figures: panels one above the other over one x axis, as SVG.

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

/// Width of a figure in pixels.
const WIDTH: u32 = 960;
/// Height of one panel in pixels.
const PANEL_HEIGHT: u32 = 300;
/// Colours that are told apart by the colour-blind too (Okabe and Ito).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
];

/// A figure.
#[derive(Clone, Debug, Default)]
pub struct Figure {
    /// Title above all.
    pub title: String,
    /// Label of the x axis, with its unit.
    pub x_label: String,
    /// Panels from top to bottom.
    pub panels: Vec<Panel>,
}

/// One panel.
#[derive(Clone, Debug, Default)]
pub struct Panel {
    /// Label of the y axis, with its unit.
    pub y_label: String,
    /// Whether y is logarithmic.
    pub log: bool,
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
            let height = PANEL_HEIGHT * self.panels.len() as u32 + 40;
            let root = SVGBackend::with_string(&mut text, (WIDTH, height)).into_drawing_area();
            root.fill(&WHITE).map_err(|e| error(e.to_string()))?;
            let root =
                root.titled(&self.title, ("sans-serif", 20)).map_err(|e| error(e.to_string()))?;
            let areas = root.split_evenly((self.panels.len(), 1));
            for (i, (panel, area)) in self.panels.iter().zip(&areas).enumerate() {
                let last = i + 1 == self.panels.len();
                let frame = Frame {
                    x: (x_low, x_high),
                    x_label: if last { self.x_label.as_str() } else { "" },
                    // The same colours hold below: one legend is enough.
                    legend: i == 0,
                };
                panel.draw(area, &frame).map_err(|why| error(why.to_string()))?;
            }
            root.present().map_err(|e| error(e.to_string()))?;
        }
        // the licence line comes with the file, as everywhere
        Ok(text)
    }

    fn x_range(&self) -> Option<(f64, f64)> {
        let xs = || self.panels.iter().flat_map(|p| &p.series).flat_map(|s| &s.points).map(|p| p.0);
        let low = xs().min_by(f64::total_cmp)?;
        let high = xs().max_by(f64::total_cmp)?;
        Some((low, if high > low { high } else { low + 1.0 }))
    }
}

/// What a panel shares with the others.
struct Frame<'a> {
    x: (f64, f64),
    x_label: &'a str,
    legend: bool,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

impl Panel {
    fn draw(
        &self,
        area: &Area<'_>,
        frame: &Frame<'_>,
    ) -> Result<(), Box<dyn std::error::Error + '_>> {
        let ys = || self.series.iter().flat_map(|s| &s.points).map(|p| p.1);
        let level = self.level.iter().map(|(y, _)| *y);
        let high = ys().chain(level).fold(0.0, f64::max);
        if self.log {
            let low = ys().filter(|y| *y > 0.0).fold(f64::INFINITY, f64::min);
            let low = if low.is_finite() { low } else { 1e-3 };
            self.draw_on(area, frame, ((low * 0.8)..(high.max(low) * 1.3)).log_scale())?;
        } else {
            self.draw_on(area, frame, 0.0..(if high > 0.0 { high * 1.1 } else { 1.0 }))?;
        }
        Ok(())
    }

    fn draw_on<Y>(
        &self,
        area: &Area<'_>,
        frame: &Frame<'_>,
        y: Y,
    ) -> Result<(), Box<dyn std::error::Error + '_>>
    where
        Y: AsRangedCoord<Value = f64>,
        Y::CoordDescType: ValueFormatter<f64> + Ranged<ValueType = f64>,
    {
        let Frame { x: (x_low, x_high), x_label, legend } = *frame;
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .set_label_area_size(LabelAreaPosition::Left, 70)
            .set_label_area_size(
                LabelAreaPosition::Bottom,
                if x_label.is_empty() { 24 } else { 44 },
            )
            .build_cartesian_2d(x_low..x_high, y)?;
        chart
            .configure_mesh()
            .x_desc(x_label)
            .y_desc(&self.y_label)
            .light_line_style(WHITE)
            .label_style(("sans-serif", 13))
            .axis_desc_style(("sans-serif", 14))
            .y_label_formatter(&|v| crate::judge::short(*v))
            .draw()?;
        if let Some((level, label)) = &self.level {
            let line = [(x_low, *level), (x_high, *level)];
            let style = BLACK.mix(0.6).stroke_width(1);
            chart
                .draw_series(DashedLineSeries::new(line, 6, 4, style))?
                .label(label)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        }
        for (i, series) in self.series.iter().enumerate() {
            let style = COLOURS[i % COLOURS.len()].stroke_width(2);
            let points = series.points.iter().copied().filter(|p| !self.log || p.1 > 0.0);
            chart
                .draw_series(LineSeries::new(points, style))?
                .label(&series.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        }
        if !legend {
            return Ok(());
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::MiddleMiddle)
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.3))
            .label_font(("sans-serif", 13))
            .draw()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(points: Vec<(f64, f64)>) -> Figure {
        let series = vec![Series { name: "reject".into(), points }];
        let panel = |log| Panel {
            y_label: "goodput, 1/s".into(),
            log,
            level: Some((100.0, "capacity".into())),
            series: series.clone(),
        };
        Figure {
            title: "Survival".into(),
            x_label: "time, s".into(),
            panels: vec![panel(false), panel(true)],
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

    #[test]
    fn nothing_to_draw_is_an_error() {
        assert!(figure(vec![]).svg().is_err());
    }
}
