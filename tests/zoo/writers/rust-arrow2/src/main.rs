// Writes every Arrow table of a folder as Parquet files with arrow2 and parquet2: `writer VERSION TABLES OUT`.
use std::{env, error::Error, fs::File, path::Path};

use arrow2::array::Array;
use arrow2::chunk::Chunk;
use arrow2::datatypes::Schema;
use arrow2::io::ipc::read::{read_file_metadata, FileReader};
use arrow2::io::parquet::write::{
    transverse, CompressionOptions, Encoding, FileWriter, RowGroupIterator, Version, WriteOptions,
};

type Encodings = fn(&str) -> Encoding;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().collect();
    println!("writer parquet2 by arrow2 {}", arguments[1]);
    let plain: Encodings = |_| Encoding::Plain;
    let lengths: Encodings = |name| match name {
        "word" | "long" | "raw" | "key" => Encoding::DeltaLengthByteArray,
        _ => Encoding::Plain,
    };
    let variants: Vec<(&str, Version, CompressionOptions, bool, Encodings)> = vec![
        ("v1-none-plain", Version::V1, CompressionOptions::Uncompressed, true, plain),
        ("v1-snappy-plain", Version::V1, CompressionOptions::Snappy, true, plain),
        ("v2-zstd-lengths", Version::V2, CompressionOptions::Zstd(None), true, lengths),
        ("v2-lz4_raw-no_statistics", Version::V2, CompressionOptions::Lz4Raw, false, plain),
        ("v2-gzip-plain", Version::V2, CompressionOptions::Gzip(None), true, plain),
        ("v1-brotli-plain", Version::V1, CompressionOptions::Brotli(None), true, plain),
    ];
    for table in ["flat", "nested", "empty"] {
        let mut source = File::open(Path::new(&arguments[2]).join(format!("{table}.arrow")))?;
        let metadata = read_file_metadata(&mut source)?;
        let fields: Vec<_> = metadata.schema.fields.clone();
        // Decimals above 18 digits and maps are among what it does not write.
        let kept: Vec<usize> = (0..fields.len()).filter(|i| !["dec38", "pairs"].contains(&fields[*i].name.as_str())).collect();
        let schema = Schema::from(kept.iter().map(|i| fields[*i].clone()).collect::<Vec<_>>());
        let chunks: Vec<Chunk<Box<dyn Array>>> = FileReader::new(source, metadata, None, None)
            .map(|chunk| chunk.map(|c| Chunk::new(kept.iter().map(|i| c.arrays()[*i].clone()).collect())))
            .collect::<Result<_, _>>()?;
        for (name, version, compression, write_statistics, encoding) in &variants {
            let options = WriteOptions {
                write_statistics: *write_statistics,
                compression: *compression,
                version: *version,
                data_pagesize_limit: Some(512),
            };
            let encodings: Vec<Vec<Encoding>> =
                schema.fields.iter().map(|f| transverse(&f.data_type, |_| encoding(&f.name))).collect();
            let groups = RowGroupIterator::try_new(chunks.clone().into_iter().map(Ok), &schema, options, encodings)?;
            let out = File::create(Path::new(&arguments[3]).join(format!("{table}-{name}.parquet")))?;
            let mut writer = FileWriter::try_new(out, schema.clone(), options)?;
            for group in groups {
                writer.write(group?)?;
            }
            writer.end(None)?;
        }
    }
    Ok(())
}
