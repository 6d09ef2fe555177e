//! Lines over two axes, as SVG: all that the benches draw.

use std::fmt::Write as _;

use serde::Serialize;

/// Size of the drawing and of the area within its axes, in pixels.
const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 740.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 370.0;
/// Most points of a line that are drawn: more are not to be told apart.
const POINTS_MAX: usize = 500;
/// Marks on a linear axis, about.
const MARKS: f64 = 6.0;
/// Told apart by the colour-blind, too (Okabe and Ito).
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999"];

/// A drawing.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Plot {
    /// Part of its file's name.
    pub(crate) name: &'static str,
    pub(crate) title: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) lines: Vec<Line>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Axis {
    pub(crate) label: String,
    /// Logarithmic: what is not above zero is left out.
    pub(crate) log: bool,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

impl Axis {
    pub(crate) fn linear(label: &str) -> Axis {
        Axis { label: label.to_owned(), log: false }
    }

    pub(crate) fn log(label: &str) -> Axis {
        Axis { label: label.to_owned(), log: true }
    }
}

impl Line {
    pub(crate) fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Line {
        Line { name: name.into(), points }
    }

    /// The share of samples that are at most as large.
    pub(crate) fn cdf(name: impl Into<String>, samples: &[f64]) -> Line {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len() as f64;
        Line::new(name, sorted.into_iter().enumerate().map(|(at, x)| (x, (at + 1) as f64 / n)).collect())
    }
}

/// From numbers to pixels.
struct Scale {
    log: bool,
    from: f64,
    to: f64,
    low: f64,
    high: f64,
}

impl Scale {
    /// That holds all of these; linear ones begin at zero.
    fn of(axis: &Axis, values: impl Iterator<Item = f64>, from: f64, to: f64) -> Scale {
        let (mut low, mut high) = (f64::INFINITY, 0.0_f64);
        for value in values.filter(|value| value.is_finite() && (!axis.log || *value > 0.0)) {
            (low, high) = (low.min(value), high.max(value));
        }
        if high <= 0.0 {
            (low, high) = (0.1, 1.0);
        }
        let (low, high) = match axis.log {
            true => (10_f64.powf(low.log10().floor()), 10_f64.powf((high.log10() - 1e-9).ceil())),
            false => {
                let step = step(high);
                (0.0, (high / step).ceil() * step)
            }
        };
        let high = if axis.log && high <= low { low * 10.0 } else { high };
        Scale { log: axis.log, from, to, low, high }
    }

    fn at(&self, value: f64) -> Option<f64> {
        if !value.is_finite() || (self.log && value <= 0.0) {
            return None;
        }
        let share = match self.log {
            true => (value / self.low).log10() / (self.high / self.low).log10(),
            false => (value - self.low) / (self.high - self.low),
        };
        Some(self.from + share * (self.to - self.from))
    }

    fn marks(&self) -> Vec<f64> {
        if self.log {
            let decades = (self.high / self.low).log10().round() as i32;
            return (0..=decades).map(|n| self.low * 10_f64.powi(n)).collect();
        }
        let step = step(self.high);
        let count = (self.high / step).round() as u32;
        (0..=count).map(|n| f64::from(n) * step).collect()
    }
}

/// 1, 2 or 5 times a power of ten.
fn step(high: f64) -> f64 {
    let rough = high / MARKS;
    let power = 10_f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0].map(|n| n * power).into_iter().find(|step| *step >= rough).unwrap_or(10.0 * power)
}

impl Plot {
    /// The drawing, which is the same for the same numbers.
    pub(crate) fn svg(&self) -> String {
        let all = || self.lines.iter().flat_map(|line| &line.points);
        let x = Scale::of(&self.x, all().map(|(x, _)| *x), LEFT, RIGHT);
        let y = Scale::of(&self.y, all().map(|(_, y)| *y), BOTTOM, TOP);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
             font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
             <text x=\"{LEFT}\" y=\"22\" font-size=\"15\">{}</text>\n",
            escape(&self.title)
        );
        self.axes(&mut svg, &x, &y);
        for (n, line) in self.lines.iter().enumerate() {
            let colour = COLOURS[n % COLOURS.len()];
            let every = line.points.len().div_ceil(POINTS_MAX).max(1);
            let last = line.points.len().saturating_sub(1);
            let points = line.points.iter().enumerate().filter(|(at, _)| at % every == 0 || *at == last);
            let mut path = String::new();
            for (px, py) in points.filter_map(|(_, point)| Some((x.at(point.0)?, y.at(point.1)?))) {
                // Writing to a string cannot fail.
                let _ = write!(path, "{px:.1},{py:.1} ");
            }
            let _ = writeln!(
                svg,
                "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\" points=\"{}\"/>",
                path.trim_end()
            );
            let at = TOP + 12.0 + 16.0 * n as f64;
            let _ = writeln!(
                svg,
                "<rect x=\"{}\" y=\"{}\" width=\"14\" height=\"3\" fill=\"{colour}\"/>\
                 <text x=\"{}\" y=\"{at}\">{}</text>",
                LEFT + 10.0,
                at - 5.0,
                LEFT + 30.0,
                escape(&line.name)
            );
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn axes(&self, svg: &mut String, x: &Scale, y: &Scale) {
        for mark in x.marks() {
            let Some(at) = x.at(mark) else { continue };
            let _ = writeln!(
                svg,
                "<path d=\"M{at:.1} {TOP}V{BOTTOM}\" stroke=\"#ddd\"/>\
                 <text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                BOTTOM + 16.0,
                label(mark)
            );
        }
        for mark in y.marks() {
            let Some(at) = y.at(mark) else { continue };
            let _ = writeln!(
                svg,
                "<path d=\"M{LEFT} {at:.1}H{RIGHT}\" stroke=\"#ddd\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 6.0,
                at + 4.0,
                label(mark)
            );
        }
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\
             <text transform=\"translate(16 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            f64::midpoint(LEFT, RIGHT),
            BOTTOM + 38.0,
            escape(&self.x.label),
            f64::midpoint(TOP, BOTTOM),
            escape(&self.y.label)
        );
    }
}

/// A mark in few characters.
fn label(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn plot(points: Vec<(f64, f64)>, log: bool) -> Plot {
        let axis = if log { Axis::log("a < b") } else { Axis::linear("a < b") };
        let lines = vec![Line::new("line & co", points)];
        Plot { name: "x", title: "T".to_owned(), x: Axis::linear("x"), y: axis, lines }
    }

    #[test]
    fn a_line_is_where_its_numbers_are() {
        let svg = plot(vec![(0.0, 0.0), (6.0, 6.0), (3.0, 3.0)], false).svg();
        let middle = (f64::midpoint(LEFT, RIGHT), f64::midpoint(TOP, BOTTOM));
        let points = format!("{LEFT:.1},{BOTTOM:.1} {RIGHT:.1},{TOP:.1} {:.1},{:.1}", middle.0, middle.1);
        assert!(svg.contains(&points), "{svg}");
        let svg = plot(vec![(1.0, 1.0), (2.0, 100.0), (6.0, 10.0), (3.0, 0.0)], true).svg();
        assert!(
            svg.contains(&format!("{RIGHT:.1},{:.1}\"", f64::midpoint(TOP, BOTTOM))),
            "zero is left out: {svg}"
        );
        assert!(svg.contains("line &amp; co") && svg.contains("a &lt; b"), "{svg}");
    }

    #[test]
    fn marks_are_round() {
        assert_eq!([1.0, 6.0, 7.0, 250.0, 8_000.0].map(step), [0.2, 1.0, 2.0, 50.0, 2_000.0]);
        assert_eq!([0.001, 0.5, 20.0, 10_000.0].map(label), ["0.001", "0.5", "20", "10000"]);
    }

    #[test]
    fn a_cdf_rises_to_one() {
        let line = Line::cdf("x", &[3.0, 1.0, 2.0, 2.0]);
        assert_eq!(line.points, [(1.0, 0.25), (2.0, 0.5), (2.0, 0.75), (3.0, 1.0)]);
    }

    proptest! {
        #[test]
        fn all_that_is_drawn_is_within(
            points in proptest::collection::vec((0.0..1e9_f64, -1.0..1e9_f64), 0..2_000), log in any::<bool>(),
        ) {
            let points: Vec<_> = points.into_iter().map(|(x, y)| (x, if log { y } else { y.abs() })).collect();
            let svg = plot(points, log).svg();
            let (_, rest) = svg.split_once(" points=\"").unwrap();
            let drawn: Vec<_> = rest.split('"').next().unwrap().split_whitespace().collect();
            prop_assert!(drawn.len() <= POINTS_MAX + 1);
            for point in drawn {
                let (x, y) = point.split_once(',').unwrap();
                let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
                prop_assert!((LEFT - 0.1..=RIGHT + 0.1).contains(&x) && (TOP - 0.1..=BOTTOM + 0.1).contains(&y), "{point}");
            }
        }
    }
}
