//! Lines that a terminal has broken at its width.

/// The fewest columns of a terminal. Shorter lines end by themselves.
const NARROWEST: usize = 32;

/// The widths of the lines of a log.
#[derive(Debug, Default)]
pub(super) struct Columns {
    longest: usize,
    last: usize,
    /// A line of the greatest width was broken.
    pub(super) is_known: bool,
}

impl Columns {
    /// Takes a line. Returns what was between it and the line before it, if that one may have been
    /// broken: no line is longer. Copying may leave out a blank at the end of a line.
    pub(super) fn feed(&mut self, text: &str) -> Option<&'static str> {
        let width = text.chars().count();
        let (before, longest) = (self.last, self.longest);
        (self.last, self.longest) = (width, longest.max(width));
        if before < NARROWEST || width > longest {
            return None;
        }
        match longest - before {
            0 => Some(""),
            1 if self.is_known => Some(" "),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::LogText;

    fn texts(log: &str) -> Vec<String> {
        let mut text = LogText::new();
        let mut found: Vec<_> = log.lines().filter_map(|line| text.feed(line.as_bytes())).collect();
        found.extend(text.finish());
        found.into_iter().map(|message| message.text).collect()
    }

    #[test]
    fn lines_broken_at_any_width_are_whole_again() {
        let text = "Out of memory: Killed process 4242 (python3) total-vm:9000kB, anon-rss:8000kB";
        for width in [36, 40, 41, 80] {
            let line = format!("[   12.345678] {text}");
            let parts: Vec<&str> =
                line.as_bytes().chunks(width).map(|part| str::from_utf8(part).unwrap()).collect();
            let log = format!("[    1.000001] x\n{}\n[   13.000001] y\n", parts.join("\n"));
            assert_eq!(texts(&log), ["x", text, "y"], "{width}");
            let copied = format!("[    1.000001] {}\nz\n{log}", "x".repeat(width - 15));
            let copied = copied.lines().map(str::trim_end).collect::<Vec<&str>>().join("\n");
            assert_eq!(texts(&copied)[2], text, "{width}");
        }
    }

    #[test]
    fn lines_that_end_by_themselves_stay_apart() {
        let long = "[   12.345678] a text of some more than 32 columns";
        for (log, expected) in [
            (format!("{long}\n    b"), 1),
            (format!("{long} and more\n{long}\nb"), 3),
            ("[   12.345678] a\nb".to_owned(), 2),
            (format!("{{\"log\": \"{long}\"}}\n{{\"log\": \"[   12.345679] b\"}}"), 2),
            (format!("{long}\n{long}"), 2),
            (format!("{long}\n{long} and more than the line before it"), 2),
        ] {
            assert_eq!(texts(&log).len(), expected, "{log}");
        }
    }
}
