//! One frame of the screen.
//!
//! Owns the layout, from 80 columns and 24 lines on: head, cores, programs, hand-offs and drops,
//! keys. Many cores are in several columns, and one line says how many do not fit. Without colour
//! the owners of a core differ by their characters.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Clear, Paragraph, Row, Table, Wrap};
use tailwater_stats::schema::PARTS;

use super::State;
use crate::view::{Core, Owner, Program, Sort};

/// Width of a column of cores from which another one begins beside it.
const COLUMN: u16 = 60;
/// Lines that a large screen has for everything but cores.
const REST: u16 = 24;
/// Width that a name has at most.
const NAME: u16 = 40;

/// Draws everything.
pub fn draw(frame: &mut Frame, state: &State, has_color: bool) {
    let area = frame.area();
    let paint = Paint { has_color };
    let columns = (area.width / COLUMN).max(1) as usize;
    let rows = state.view.cores.len().div_ceil(columns).max(1);
    // A third of a small screen, and of a large one all but what the rest needs.
    let most = (area.height / 3).max(3).max(area.height.saturating_sub(REST)) as usize;
    let cores = rows.min(most) as u16 + u16::from(rows > most);
    let foot = if area.height < 30 { 4 } else { 6 };
    let [head, legend, bars, _, table, below, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(cores),
        Constraint::Length(1),
        Constraint::Min(3),
        Constraint::Length(foot),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(paint.head(state), head);
    frame.render_widget(paint.legend(), legend);
    paint.cores(frame, bars, &state.view.cores, (columns, most));
    paint.programs(frame, table, state);
    frame.render_widget(paint.flows(state, below), below);
    frame.render_widget(paint.keys(state), keys);
    if state.has_help {
        help(frame, area);
    }
}

struct Paint {
    has_color: bool,
}

impl Paint {
    fn style(&self, color: Color) -> Style {
        if self.has_color { Style::new().fg(color) } else { Style::new() }
    }

    /// Returns the character and the style of an owner.
    fn owner(&self, owner: Owner) -> (&'static str, Style) {
        let (symbol, color) = match owner {
            Owner::Service => ("█", Color::Green),
            Owner::Polling => ("▒", Color::Cyan),
            Owner::Batch => ("▓", Color::Blue),
            Owner::Handoff => ("╳", Color::Red),
            Owner::Free => ("·", Color::DarkGray),
        };
        (symbol, self.style(color))
    }

    fn head<'a>(&self, state: &'a State) -> Line<'a> {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let mut spans = vec![Span::styled("tailwater top  ", bold)];
        match &state.problem {
            Some(why) => {
                let style = self.style(Color::Red).patch(bold);
                spans.push(Span::styled(format!("no answer: {why}"), style));
            }
            None => spans.push(Span::raw(&state.view.head)),
        }
        if state.is_paused {
            spans.insert(1, Span::styled("PAUSED  ", self.style(Color::Yellow).patch(bold)));
        }
        spans.into()
    }

    fn legend(&self) -> Line<'static> {
        let mut spans = Vec::new();
        for owner in Owner::ALL {
            let (symbol, style) = self.owner(owner);
            spans.push(Span::styled(symbol.repeat(2), style));
            spans.push(Span::raw(format!(" {}   ", owner.name())));
        }
        spans.into()
    }

    fn cores(&self, frame: &mut Frame, area: Rect, cores: &[Core], (columns, most): (usize, usize)) {
        let rows = cores.len().div_ceil(columns);
        let shown = rows.min(most);
        let width = area.width / columns as u16;
        for (at, core) in cores.iter().enumerate() {
            // The first column is filled first, as numbers of cores are read.
            let (column, row) = (at / rows.max(1), at % rows.max(1));
            if row < shown {
                let (x, y) = (area.x + column as u16 * width, area.y + row as u16);
                frame.render_widget(self.core(core, width), Rect { x, y, width, height: 1 });
            }
        }
        if rows > shown {
            let left = cores.len() - (0..cores.len()).filter(|at| at % rows < shown).count();
            let note = Line::raw(format!("{left} more cores: `tailwater top --once` prints all"));
            frame.render_widget(note, Rect { y: area.y + shown as u16, height: 1, ..area });
        }
    }

    /// Returns one core: number, bar, and the part in which it worked.
    fn core(&self, core: &Core, width: u16) -> Line<'static> {
        let cells = width.saturating_sub(12) as usize;
        let mut spans = vec![Span::raw(format!("{:>4} ", core.number))];
        for (owner, cells) in Owner::ALL.into_iter().zip(divide(core.shares, cells)) {
            let (symbol, style) = self.owner(owner);
            spans.push(Span::styled(symbol.repeat(cells), style));
        }
        let busy = (core.shares[0] + core.shares[2]) * 100.0;
        spans.push(Span::raw(format!(" {busy:>3.0} %")));
        spans.into()
    }

    fn programs(&self, frame: &mut Frame, area: Rect, state: &State) {
        let programs = state.view.sorted(state.sort, state.is_reversed, &state.filter);
        // Programs may have ended since the key that scrolled.
        let scroll = state.scroll.min(programs.len().saturating_sub(1));
        let is_wide = area.width >= 110;
        let mut columns = vec![
            "program", "kind", "cores", "core s/s", "queued", "p50 us", "p99 us", "rx/s", "tx/s", "drop/s",
        ];
        // With room for the arrow at the column that is sorted by.
        let mut widths: Vec<u16> = vec![10, 7, 5, 9, 7, 6, 7, 6, 6, 7];
        if is_wide {
            columns.push("preempted/s");
            widths.push(11);
        }
        let arrow = if state.is_reversed { "↑" } else { "↓" };
        let heads = columns.iter().enumerate().map(|(at, name)| {
            let is_sorted = *name == state.sort.column();
            let text = if is_sorted { format!("{name}{arrow}") } else { (*name).to_owned() };
            let style = Style::new().add_modifier(if is_sorted {
                Modifier::BOLD | Modifier::UNDERLINED
            } else {
                Modifier::BOLD
            });
            let line = Line::styled(text, style);
            Cell::from(if at < 2 { line } else { line.right_aligned() })
        });
        let header = Row::new(heads);
        let body = area.height.saturating_sub(2) as usize;
        let rows = programs.iter().skip(scroll).take(body).map(|program| self.row(program, is_wide));
        let mut constraints: Vec<Constraint> =
            widths.iter().map(|width| Constraint::Length(width + 1)).collect();
        let others: u16 = widths[1..].iter().map(|width| width + 1).sum();
        constraints[0] = Constraint::Length(area.width.saturating_sub(others).clamp(widths[0], NAME));
        frame.render_widget(Table::new(rows, constraints).header(header).column_spacing(0), area);
        let left = programs.len().saturating_sub(scroll + body);
        let note = match (programs.is_empty(), left) {
            (true, _) if state.filter.is_empty() => "no program is registered".to_owned(),
            (true, _) => format!("no program has `{}` in its name", state.filter),
            (false, 0) => return,
            (false, left) => format!("{left} more below"),
        };
        let y = area.y + area.height.saturating_sub(1);
        frame.render_widget(Line::raw(note), Rect { y, height: 1, ..area });
    }

    fn row(&self, program: &Program, is_wide: bool) -> Row<'static> {
        let optional = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), short);
        let warn = |is_bad: bool| if is_bad { self.style(Color::Red) } else { Style::new() };
        let right = |text: String| Cell::from(Line::raw(text).right_aligned());
        let kind = self.owner(if program.kind == "service" { Owner::Service } else { Owner::Batch }).1;
        let mut cells = vec![
            Cell::from(program.name.clone()),
            Cell::from(program.kind).style(kind),
            right(program.cores.map_or_else(|| "-".to_owned(), |cores| format!("{cores:.0}"))),
            right(format!("{:.2}", program.used)),
            right(optional(program.queued)),
            right(optional(program.p50)),
            right(optional(program.p99)),
            right(short(program.rx)),
            right(short(program.tx)),
            right(short(program.dropped)).style(warn(program.dropped > 0.0)),
        ];
        if is_wide {
            cells.push(right(short(program.preempted)));
        }
        Row::new(cells)
    }

    /// Returns who took time, drops and hand-offs; the last continue on the next line.
    fn flows(&self, state: &State, area: Rect) -> Paragraph<'static> {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let mut handoffs = vec![Span::styled("hand-offs/s (p50/p99)", bold)];
        for handoff in &state.view.handoffs {
            if let Some((p50, p99)) = handoff.percentiles {
                let rate = short(handoff.rate);
                let times = format!("({}/{} us)", short(p50), short(p99));
                handoffs.push(Span::raw(format!(" {} {rate} {times} ", handoff.kind)));
            }
        }
        if handoffs.len() == 1 {
            handoffs.push(Span::raw(" none"));
        }
        let mut drops = vec![Span::styled("dropped/s", bold)];
        for (reason, rate) in &state.view.drops {
            drops.push(Span::styled(format!(" {reason} {}", short(*rate)), self.style(Color::Red)));
        }
        if drops.len() == 1 {
            drops.push(Span::raw(" none"));
        }
        let mut takers = vec![Span::styled("ran on lent cores", bold)];
        let none = ["none".to_owned()];
        let named = if state.view.takers.is_empty() { &none[..] } else { &state.view.takers };
        takers.push(Span::raw(format!(" {}", named.join(", "))));
        // One line: those behind took least.
        let width = area.width as usize;
        let lines = vec![cut(takers, width), drops.into(), handoffs.into()];
        Paragraph::new(lines).wrap(Wrap { trim: true })
    }

    fn keys(&self, state: &State) -> Line<'static> {
        if state.is_typing {
            return Line::raw(format!("filter: {}_   Enter: keep   Esc: no filter", state.filter));
        }
        let filter = if state.filter.is_empty() { String::new() } else { format!(" [{}]", state.filter) };
        let keys = format!("q quit  s sort  r reverse  / filter{filter}  p pause  ? help");
        Line::styled(keys, Style::new().add_modifier(Modifier::DIM))
    }
}

/// Divides cells among shares that add up to 1: each gets the whole cells of its part, and what is
/// left goes to the largest remainders.
fn divide(shares: [f64; 5], cells: usize) -> [usize; 5] {
    let exact = shares.map(|share| share.clamp(0.0, 1.0) * cells as f64);
    let mut whole = exact.map(|part| part.floor() as usize);
    let mut order: Vec<usize> = (0..5).collect();
    order.sort_by(|a, b| (exact[*b].fract()).total_cmp(&exact[*a].fract()));
    for at in order.into_iter().cycle().take(10) {
        if whole.iter().sum::<usize>() >= cells {
            break;
        }
        whole[at] += 1;
    }
    whole
}

/// Returns a line of at most `width` characters, whose last span ends with dots if it was cut.
fn cut(mut spans: Vec<Span<'static>>, width: usize) -> Line<'static> {
    let all: usize = spans.iter().map(|span| span.content.chars().count()).sum();
    if let Some(last) = spans.last_mut()
        && all > width
    {
        let kept = last.content.chars().count().saturating_sub(all - width + 3);
        last.content = last.content.chars().take(kept).chain("...".chars()).collect::<String>().into();
    }
    spans.into()
}

/// Returns a number in at most six characters.
fn short(value: f64) -> String {
    match value {
        value if value.is_infinite() => "inf".to_owned(),
        value if value >= 999_500_000.0 => format!("{:.1}G", value / 1e9),
        value if value >= 999_500.0 => format!("{:.1}M", value / 1e6),
        value if value >= 9_999.5 => format!("{:.0}k", value / 1e3),
        value if value >= 9.95 || value.fract() == 0.0 => format!("{value:.0}"),
        value => format!("{value:.1}"),
    }
}

/// The columns, and the statistics that they are made of.
const COLUMNS: [(&str, &str, &str); 9] = [
    ("cores", "runtimes[].counters", "cores"),
    ("core s/s", "runtimes[].counters", "core_ns"),
    ("queued", "runtimes[]", "queued_threads"),
    ("", "runtimes[]", "waiting_rings"),
    ("p50, p99 us", "runtimes[].classes[]", "latency_ns"),
    ("rx/s", "runtimes[].counters", "rx_frames"),
    ("tx/s", "runtimes[].counters", "tx_frames"),
    ("drop/s", "runtimes[].classes[]", "dropped"),
    ("preempted/s", "runtimes[].counters", "preempted"),
];

/// Returns what a statistic means.
fn meaning(place: &str, key: &str) -> Option<&'static str> {
    let parts = PARTS.iter().filter(|part| part.place() == place);
    parts.flat_map(|part| part.shape.fields()).find(|field| field.key == key).map(|field| field.help)
}

fn help(frame: &mut Frame, area: Rect) {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let mut lines =
        vec![Line::styled("Columns (a batch job that Linux runs is a job)", bold), Line::default()];
    for (column, place, key) in COLUMNS {
        let meaning = meaning(place, key).unwrap_or_default();
        lines.push(Line::from(vec![Span::styled(format!("{column:<12}"), bold), Span::raw(meaning)]));
    }
    lines.push(Line::default());
    lines
        .push(Line::raw("p50, p99: of the class of requests with the longest latency; drop/s: also frames."));
    lines.push(Line::raw("Ran on lent cores: other threads, and how long a kthread waited for them."));
    lines.push(Line::raw("Percentiles of hand-offs are bounds of buckets, of the last interval."));
    lines.push(Line::default());
    lines.push(Line::raw(format!("s, S: sort by {}", Sort::ALL.map(Sort::column).join(", "))));
    lines.push(Line::raw("r reverse  / filter  p pause  up, down scroll  q quit  ? or Esc closes this"));
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: false }), area);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::tests::state;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

    fn drawn(state: &State, width: u16, height: u16, has_color: bool) -> Terminal<TestBackend> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, state, has_color)).unwrap();
        terminal
    }

    fn snapshot(name: &str, state: &State, width: u16, height: u16) {
        insta::assert_snapshot!(name, drawn(state, width, height, false).backend());
    }

    #[test]
    fn the_screen_is_right_in_its_sizes() {
        snapshot("80x24", &state(2), 80, 24);
        snapshot("200x50", &state(64), 200, 50);
        let mut state = state(64);
        state.press(KeyEvent::new(KeyCode::Char('?'), KeyModifiers::NONE));
        snapshot("help", &state, 80, 24);
    }

    #[test]
    fn no_size_is_too_small_and_no_list_too_long() {
        for (width, height) in [(1, 1), (10, 3), (79, 5), (300, 4)] {
            drawn(&state(300), width, height, true);
        }
        let text = drawn(&state(300), 80, 24, false).backend().to_string();
        assert!(text.contains("more cores"), "{text}");
    }

    #[test]
    fn colours_are_used_unless_they_are_refused() {
        let is_plain = |terminal: &Terminal<TestBackend>| {
            terminal.backend().buffer().content().iter().all(|cell| cell.fg == Color::Reset)
        };
        assert!(is_plain(&drawn(&state(2), 80, 24, false)) && !is_plain(&drawn(&state(2), 80, 24, true)));
    }

    #[test]
    fn a_list_that_gets_shorter_is_not_scrolled_past_its_end() {
        let mut state = state(2);
        for _ in 0..9 {
            state.press(KeyEvent::new(KeyCode::PageDown, KeyModifiers::NONE));
        }
        // As if the others had ended since.
        state.filter = "xz".to_owned();
        let text = drawn(&state, 80, 24, false).backend().to_string();
        assert!(text.contains("xz"), "{text}");
    }

    #[test]
    fn every_column_has_a_meaning() {
        for (column, place, key) in COLUMNS {
            assert!(meaning(place, key).is_some(), "{column}: {place}.{key}");
        }
    }

    #[test]
    fn cells_and_numbers_fit() {
        assert_eq!(divide([0.5, 0.25, 0.25, 0.0, 0.0], 4), [2, 1, 1, 0, 0]);
        assert_eq!(divide([0.34, 0.33, 0.33, 0.0, 0.0], 10).iter().sum::<usize>(), 10);
        let texts = [0.0, 0.25, 9.97, 480.0, 9_999.6, 123_456.0, 7.2e6, 3e9].map(short);
        assert_eq!(texts, ["0", "0.2", "10", "480", "10k", "123k", "7.2M", "3.0G"]);
    }
}
