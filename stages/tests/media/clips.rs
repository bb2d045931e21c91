//! Clips against the reference feature extractor, and every container against one another.

use safetensors::SafeTensors;
use serde_json::Value;
use weft_engine::media::LogMel;
use weft_stages::{AudioFormat, Length, MediaFacts, audio_facts};

use crate::fixtures::fixture;
use crate::{audio, omni, whisper};

#[test]
fn log_mel_equals_the_reference() {
    let tensors = SafeTensors::deserialize(fixture("logmel/logmel.safetensors")).unwrap();
    let listing: Value = serde_json::from_slice(fixture("logmel/logmel.json")).unwrap();
    let clips = listing["clips"].as_array().unwrap();
    assert!(clips.len() >= 6);
    println!("{:<12} {:<10} {:>8} {:>12} {:>14}", "clip", "kind", "frames", "max abs", "sum difference");
    for clip in clips {
        let file = clip["file"].as_str().unwrap();
        let name = file.split('.').next().unwrap();
        for (kind, processor) in [("whisper80", whisper()), ("omni128", omni())] {
            let LogMel { values, frames, bins, .. } =
                audio(fixture(&format!("logmel/{file}")), processor).unwrap().value;
            assert_eq!(frames as u64, clip[kind]["frames"].as_u64().unwrap(), "{file} {kind}");
            assert_eq!(values.len(), frames * bins);
            let tensor = tensors.tensor(&format!("{name}.{kind}")).unwrap();
            let kept = tensors.tensor(&format!("{name}.{kind}.frames")).unwrap();
            let kept = kept.data().chunks_exact(8).map(|n| i64::from_le_bytes(n.try_into().unwrap()) as usize);
            let kept: Vec<usize> = kept.collect();
            let expected: Vec<f32> =
                tensor.data().chunks_exact(4).map(|n| f32::from_le_bytes(n.try_into().unwrap())).collect();
            assert_eq!(tensor.shape(), [bins, kept.len()]);
            let gap = |band: usize, i: usize| (expected[band * kept.len() + i] - values[kept[i] * bins + band]).abs();
            let most = (0..bins).flat_map(|band| (0..kept.len()).map(move |i| (band, i)));
            let most = most.map(|(band, i)| gap(band, i)).fold(0.0, f32::max);
            let sum: f64 = values.iter().map(|value| f64::from(*value)).sum();
            let sum_gap = (sum - clip[kind]["sum"].as_f64().unwrap()).abs();
            println!("{name:<12} {kind:<10} {frames:>8} {most:>12.2e} {sum_gap:>14.3}");
            assert!(most <= 1e-4, "{file} {kind}: {most}");
            assert!(
                sum_gap <= 1e-5 * values.len() as f64,
                "{file} {kind}: frames that were not stored differ, {sum_gap}"
            );
        }
    }
}

#[test]
fn every_container_is_read_and_its_facts_are_right() {
    let listing: Value = serde_json::from_slice(fixture("odd/odd.json")).unwrap();
    for entry in listing["audio"].as_array().unwrap().iter().filter(|entry| entry["expect"] == "ok") {
        let file = entry["file"].as_str().unwrap();
        let bytes = fixture(&format!("odd/{file}"));
        let prepared = audio(bytes, whisper()).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(prepared.warnings.is_empty(), "{file}: {:?}", prepared.warnings);
        let MediaFacts::Audio(decoded) = prepared.source else { panic!("{file} is a clip") };
        let stated = audio_facts(bytes).unwrap_or_else(|error| panic!("{file}: {error}"));
        let seconds = entry["seconds"].as_f64().unwrap();
        let (read, header) = (decoded.length.seconds(), stated.length);
        println!("{file:<20} {seconds:>7.4} s, decoded {read:.4}, header {header:?}");
        assert_eq!(u64::from(decoded.sample_rate), entry["rate"].as_u64().unwrap(), "{file}");
        assert_eq!(decoded.channels as u64, entry["channels"].as_u64().unwrap(), "{file}");
        assert!((read - seconds).abs() < 0.075, "{file}: {read} for {seconds}");
        let slack = if matches!(header, Length::Stated(_)) { 0.1 } else { 0.5 * seconds };
        assert!((header.seconds() - seconds).abs() < slack, "{file}: {header:?} for {seconds}");
        assert_eq!((stated.sample_rate, stated.format), (decoded.sample_rate, decoded.format), "{file}");
    }
}

#[test]
fn a_damaged_packet_costs_itself_and_is_reported() {
    let prepared = audio(fixture("odd/damaged.mp3"), whisper()).unwrap();
    println!("damaged.mp3: {:?}", prepared.warnings);
    let MediaFacts::Audio(facts) = prepared.source else { panic!("a clip") };
    assert_eq!(facts.format, AudioFormat::Mp3);
    assert!(facts.length.seconds() > 2.2, "{facts:?}");
}

#[test]
fn identity_covers_content_and_settings() {
    let id = |file: &str, processor| audio(fixture(file), processor).unwrap().value.id;
    let base = id("odd/clip.wav", whisper());
    assert_eq!(base, id("odd/clip.flac", whisper()), "same samples in another container");
    assert_ne!(base, id("odd/clip_cbr.mp3", whisper()));
    assert_ne!(base, id("odd/clip.wav", omni()));
    assert_ne!(base, id("odd/clip.wav", weft_engine::card::AudioProcessor { max_seconds: 31.0, ..whisper() }));
}

#[test]
fn whisper_keeps_all_frames_of_a_long_clip_and_omni_refuses_what_it_cannot_take() {
    let samples: Vec<u8> = (0..16_000 * 65).flat_map(|i| (((i * 37 % 2000) - 1000) as i16).to_le_bytes()).collect();
    let file = wav(16_000, &samples);
    let long = audio(file.clone(), whisper()).unwrap().value;
    assert_eq!(long.frames, 6500);
    let error = audio(file, weft_engine::card::AudioProcessor { max_seconds: 60.0, ..omni() }).unwrap_err();
    assert_eq!(error.kind, weft_stages::ErrorKind::TooLarge, "{error}");
}

pub(crate) fn wav(rate: u32, samples: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    file.extend(b"RIFF");
    file.extend((36 + samples.len() as u32).to_le_bytes());
    file.extend(b"WAVEfmt \x10\0\0\0\x01\0\x01\0");
    file.extend(rate.to_le_bytes());
    file.extend((rate * 2).to_le_bytes());
    file.extend(b"\x02\0\x10\0data");
    file.extend((samples.len() as u32).to_le_bytes());
    file.extend(samples);
    file
}
