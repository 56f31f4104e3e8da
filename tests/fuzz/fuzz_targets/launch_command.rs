//! Commands of engines: what they say of their memory is within what any engine can take.
#![no_main]

use libfuzzer_sys::fuzz_target;
use umawarden::engines::LaunchCommand;

fuzz_target!(|text: &str| {
    let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
    let whole = vec!["bash".to_owned(), "-c".to_owned(), text.to_owned()];
    for words in [words, whole] {
        let Some(command) = LaunchCommand::read(&words) else { continue };
        assert!(command.ranks >= 1);
        assert!(command.share.is_none_or(|share| share.value > 0.0 && share.value <= 1.0));
        assert!(command.context.is_none_or(|context| context.value > 0));
    }
});
