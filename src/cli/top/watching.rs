//! The terminal: drawn once a second, until a key or a signal ends it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{self, Span, Text};

use super::feed::WatchedNode;
use super::frame::{FrameLine, FrameSize, FrameView, lines};
use crate::cli::Exit;
use crate::cli::gate::signals;
use crate::cli::output;
use crate::cli::pictures::NodeSource;
use crate::cli::style::{Tone, is_utf8};
use crate::model::seconds_text;

/// How long it waits for a key before it asks for news.
const TICK: Duration = Duration::from_millis(200);

/// A drawing is repeated after this, since it has times in it.
const REDRAWN_AFTER: Duration = Duration::from_secs(1);

/// How long the end may take after a signal, as when the terminal takes nothing any more.
const ENDING_TAKES: Duration = Duration::from_secs(1);

/// What is shown, and of whom.
struct TopView {
    nodes: Vec<WatchedNode>,
    chosen: usize,
    scroll: usize,
    has_colours: bool,
    is_utf8: bool,
}

/// Shows the nodes until a person ends it.
///
/// # Errors
/// The terminal cannot be used.
pub(super) fn run(sources: Vec<NodeSource>) -> anyhow::Result<Exit> {
    let nodes = sources.into_iter().map(WatchedNode::start).collect::<std::io::Result<Vec<_>>>();
    let nodes = nodes.context("cannot start the threads that query the nodes")?;
    let has_colours = output::colours_wanted(true);
    let mut shown = TopView { nodes, chosen: 0, scroll: 0, has_colours, is_utf8: is_utf8() };
    let signal = Arc::new(AtomicI32::new(0));
    let seen = Arc::clone(&signal);
    let on_signal = move |number| {
        seen.store(number, Ordering::Relaxed);
        std::thread::sleep(ENDING_TAKES);
        // The terminal may be gone.
        let _ = ratatui::try_restore();
        std::process::exit(signals::BY_SIGNAL + number);
    };
    signals::on_end(on_signal).context("cannot listen for signals")?;
    // Its hook restores the terminal at a panic.
    let begun = ratatui::try_init().context("cannot use the terminal");
    let ended = begun.and_then(|mut terminal| shown.show(&mut terminal, &signal));
    let restored = ratatui::try_restore().context("cannot restore the terminal: run `reset`");
    match signal.load(Ordering::Relaxed) {
        0 => ended.and(restored).map(|()| Exit::Fine),
        number => Ok(Exit::Code(u8::try_from(signals::BY_SIGNAL + number).unwrap_or(u8::MAX))),
    }
}

impl TopView {
    fn show(&mut self, terminal: &mut DefaultTerminal, signal: &AtomicI32) -> anyhow::Result<()> {
        let mut drawn: Option<Instant> = None;
        while signal.load(Ordering::Relaxed) == 0 {
            let mut has_news = false;
            for node in &mut self.nodes {
                has_news |= node.take();
            }
            if has_news || drawn.is_none_or(|drawn| drawn.elapsed() >= REDRAWN_AFTER) {
                let area = terminal.size().context("the terminal has no size")?;
                let (width, height) = (usize::from(area.width), usize::from(area.height));
                let text = self.text(width, height);
                terminal.draw(|frame| frame.render_widget(text, frame.area()))?;
                drawn = Some(Instant::now());
            }
            if !event::poll(TICK)? {
                continue;
            }
            match event::read()? {
                Event::Key(key) if is_end(key) => return Ok(()),
                Event::Key(key) => self.obey(key),
                _ => {}
            }
            drawn = None;
        }
        Ok(())
    }

    fn obey(&mut self, key: KeyEvent) {
        if key.kind == KeyEventKind::Release {
            return;
        }
        let count = self.nodes.len().max(1);
        match key.code {
            KeyCode::Tab => self.chosen = (self.chosen + 1) % count,
            KeyCode::BackTab => self.chosen = (self.chosen + count - 1) % count,
            KeyCode::Char(digit @ '1'..='9') => {
                let number = usize::try_from(digit.to_digit(10).unwrap_or(1)).unwrap_or(1) - 1;
                self.chosen = if number < count { number } else { self.chosen };
            }
            KeyCode::Down | KeyCode::Char('j') => self.scroll = self.scroll.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => self.scroll = self.scroll.saturating_sub(1),
            _ => return,
        }
        let past = self.nodes.get(self.chosen).and_then(|node| node.picture.as_ref());
        let entries = past.map_or(0, |picture| picture.happened.len());
        self.scroll = self.scroll.min(entries.saturating_sub(1));
    }

    fn text(&self, width: usize, height: usize) -> Text<'static> {
        let Some(node) = self.nodes.get(self.chosen) else { return Text::default() };
        let which =
            (self.nodes.len() > 1).then(|| format!("{} of {}", self.chosen + 1, self.nodes.len()));
        let away = node
            .away
            .as_ref()
            .map(|(since, why)| format!("no answer for {}: {why}", seconds_text(since.elapsed())));
        let frame = FrameSize {
            width,
            height: Some(height.saturating_sub(1)),
            is_utf8: self.is_utf8,
            scroll: self.scroll,
        };
        let mut all = match (&node.picture, away) {
            (Some(picture), away) => {
                lines(&FrameView { picture, memory: node.memory.as_ref(), away, which }, frame)
            }
            (None, away) => waiting(&node.name, away, width),
        };
        all.resize(height.saturating_sub(1), FrameLine::default());
        let keys = match self.nodes.len() {
            0 | 1 => "q ends, Down and Up: older and newer events",
            _ => "q ends, Tab or 1 to 9: another node, Down and Up: older and newer events",
        };
        all.push(FrameLine::of(Tone::Faint, keys));
        Text::from_iter(all.into_iter().map(|line| self.line(line)))
    }

    fn line(&self, line: FrameLine) -> text::Line<'static> {
        let spans =
            line.0.into_iter().map(|piece| Span::styled(piece.text, self.style(piece.tone)));
        text::Line::from_iter(spans)
    }

    fn style(&self, tone: Tone) -> Style {
        const NUMBERED: [Color; 6] = [
            Color::Cyan,
            Color::Blue,
            Color::Magenta,
            Color::LightCyan,
            Color::LightBlue,
            Color::LightMagenta,
        ];
        let colour = |colour: Color| match self.has_colours {
            true => Style::new().fg(colour),
            false => Style::new(),
        };
        match tone {
            Tone::Plain => Style::new(),
            Tone::Good => colour(Color::Green),
            Tone::Warn => colour(Color::Yellow),
            Tone::Bad => colour(Color::Red).add_modifier(Modifier::BOLD),
            Tone::Faint => Style::new().add_modifier(Modifier::DIM),
            Tone::Strong => Style::new().add_modifier(Modifier::BOLD),
            Tone::Number(number) => colour(NUMBERED[number % NUMBERED.len()]),
        }
    }
}

/// What is shown of a node without a picture, wrapped, since it says what to do.
fn waiting(name: &str, away: Option<String>, width: usize) -> Vec<FrameLine> {
    let text = away.unwrap_or_else(|| "queried for the first time".to_owned());
    let text = crate::cli::text::wrapped(&text, 0, 0, width.max(20));
    let mut all = vec![FrameLine::of(Tone::Strong, name)];
    all.extend(text.lines().map(|line| FrameLine::of(Tone::Bad, line)));
    all.push(FrameLine::of(Tone::Faint, "It is queried again each second."));
    all
}

/// In raw mode Ctrl-C is a key.
fn is_end(key: KeyEvent) -> bool {
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('q') => key.kind != KeyEventKind::Release,
        KeyCode::Char('c' | 'C') => is_control,
        _ => false,
    }
}
