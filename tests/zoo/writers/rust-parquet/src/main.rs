// Writes every Arrow table of a folder as Parquet files with arrow-rs' parquet: `writer VERSION TABLES [VARIANT TO SKIP ...] OUT`.
use std::{env, error::Error, fs::File, path::Path, sync::Arc};

use arrow_array::RecordBatch;
use arrow_ipc::reader::FileReader;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding};
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder, WriterVersion};
use parquet::schema::types::ColumnPath;

type Change = fn(WriterPropertiesBuilder) -> WriterPropertiesBuilder;

fn encoded(builder: WriterPropertiesBuilder, columns: &[&str], encoding: Encoding) -> WriterPropertiesBuilder {
    columns.iter().fold(builder, |b, name| b.set_column_encoding(ColumnPath::from(*name), encoding))
}

fn deltas(builder: WriterPropertiesBuilder) -> WriterPropertiesBuilder {
    let b = builder.set_dictionary_enabled(false);
    let b = encoded(b, &["n", "bucket", "i32", "i64", "day", "ts_us", "u32"], Encoding::DELTA_BINARY_PACKED);
    let b = encoded(b, &["key", "long", "word"], Encoding::DELTA_BYTE_ARRAY);
    encoded(b, &["unicode", "raw"], Encoding::DELTA_LENGTH_BYTE_ARRAY)
}

fn split(builder: WriterPropertiesBuilder) -> WriterPropertiesBuilder {
    encoded(builder.set_dictionary_enabled(false), &["f32", "f64", "nan"], Encoding::BYTE_STREAM_SPLIT)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().collect();
    let (tables, out) = (Path::new(&arguments[2]), Path::new(&arguments[arguments.len() - 1]));
    let skipped = &arguments[3..arguments.len() - 1];
    println!("writer parquet-rs {}", arguments[1]);
    for skip in skipped {
        println!("skipped {skip}: this version does not offer it");
    }
    let variants: Vec<(&str, WriterVersion, Compression, Change)> = vec![
        ("v1-none-plain", WriterVersion::PARQUET_1_0, Compression::UNCOMPRESSED, |b| b.set_dictionary_enabled(false)),
        ("v1-snappy-dictionary", WriterVersion::PARQUET_1_0, Compression::SNAPPY, |b| b),
        ("v2-zstd-dictionary", WriterVersion::PARQUET_2_0, Compression::ZSTD(Default::default()), |b| b),
        ("v2-lz4_raw-delta", WriterVersion::PARQUET_2_0, Compression::LZ4_RAW, deltas),
        ("v1-gzip-split", WriterVersion::PARQUET_1_0, Compression::GZIP(Default::default()), split),
        ("v2-brotli-bloom", WriterVersion::PARQUET_2_0, Compression::BROTLI(Default::default()), |b| b.set_bloom_filter_enabled(true)),
        ("v1-lz4-truncated", WriterVersion::PARQUET_1_0, Compression::LZ4, |b| {
            b.set_column_index_truncate_length(Some(8))
        }),
        ("v2-none-chunk_statistics", WriterVersion::PARQUET_2_0, Compression::UNCOMPRESSED, |b| {
            b.set_statistics_enabled(EnabledStatistics::Chunk)
        }),
        ("v1-none-no_statistics", WriterVersion::PARQUET_1_0, Compression::UNCOMPRESSED, |b| {
            b.set_statistics_enabled(EnabledStatistics::None)
        }),
    ];
    for table in ["flat", "nested", "empty"] {
        let source = File::open(tables.join(format!("{table}.arrow")))?;
        let reader = FileReader::try_new(source, None)?;
        let schema = reader.schema();
        let batches: Vec<RecordBatch> = reader.collect::<Result<_, _>>()?;
        for (name, version, compression, change) in &variants {
            if skipped.iter().any(|skip| skip == name) {
                continue;
            }
            let builder = WriterProperties::builder()
                .set_writer_version(*version)
                .set_compression(*compression)
                .set_write_batch_size(40)
                .set_data_page_row_count_limit(40);
            let file = File::create(out.join(format!("{table}-{name}.parquet")))?;
            let mut writer = ArrowWriter::try_new(file, Arc::clone(&schema), Some(change(builder).build()))?;
            for batch in &batches {
                writer.write(batch)?;
                writer.flush()?;
            }
            writer.close()?;
        }
    }
    Ok(())
}
