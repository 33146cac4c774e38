import java.io.File;
import java.lang.reflect.Method;
import org.apache.hadoop.fs.Path;
import org.apache.parquet.Version;
import org.apache.parquet.column.ParquetProperties.WriterVersion;
import org.apache.parquet.example.data.Group;
import org.apache.parquet.example.data.simple.SimpleGroup;
import org.apache.parquet.hadoop.ParquetWriter;
import org.apache.parquet.hadoop.example.ExampleParquetWriter;
import org.apache.parquet.hadoop.metadata.CompressionCodecName;
import org.apache.parquet.io.api.Binary;
import org.apache.parquet.schema.MessageType;
import org.apache.parquet.schema.MessageTypeParser;

/** Writes Parquet files with parquet-java: {@code ParquetJava OUT}. */
public final class ParquetJava {
  private static final int ROWS = 1000;

  private static final MessageType FLAT = MessageTypeParser.parseMessageType(
      "message flat { required int64 id; required int32 shuffled; optional int32 small (INT_16); optional int64 runs;"
      + " required int32 uint (UINT_32); optional boolean flag; optional float float; required double double;"
      + " optional binary category (UTF8); required binary word (UTF8); optional binary long (UTF8); optional binary binary;"
      + " required int32 price (DECIMAL(9,2)); optional int64 amount (DECIMAL(18,4)); required binary total (DECIMAL(30,2));"
      + " required fixed_len_byte_array(5) fixed (DECIMAL(10,2)); optional int32 day (DATE); required int32 clock (TIME_MILLIS);"
      + " required int64 at_ms (TIMESTAMP_MILLIS); optional int64 at_us (TIMESTAMP_MICROS); optional int96 at_int96;"
      + " optional int32 empty; }");
  private static final MessageType NESTED = MessageTypeParser.parseMessageType(
      "message nested { required int64 id; optional group numbers (LIST) { repeated group list { optional int64 element; } }"
      + " repeated binary bare (UTF8); optional group point { optional binary name (UTF8); required int32 size; }"
      + " optional group items (LIST) { repeated group list { optional group element { optional binary name (UTF8);"
      + " optional int32 size; } } } optional group pairs (MAP) { repeated group key_value { required binary key (UTF8);"
      + " optional int64 value; } } optional binary tail (UTF8); }");

  private static double value(int i) {
    return i % 97 == 3 ? Double.NaN : i % 89 == 5 ? -0.0 : (i - 500) * 0.75;
  }

  private static Binary bytes(long value, int width) {
    byte[] all = new byte[width];
    for (int at = width - 1; at >= 0; at--, value >>= 8) {
      all[at] = (byte) value;
    }
    return Binary.fromConstantByteArray(all);
  }

  private static Group flat(int i) {
    Group row = new SimpleGroup(FLAT);
    row.append("id", (long) i).append("shuffled", i * 7919 % ROWS).append("uint", (int) (i * 4294967L));
    if (i % 5 != 4) row.append("small", (int) (short) (i * 61));
    if (i / 100 % 3 != 1) row.append("runs", (long) (i / 100));
    if (i % 13 != 12) row.append("flag", i % 3 == 0);
    if (i % 10 != 9) row.append("float", (float) value(i));
    row.append("double", value(i));
    if (i % 6 != 5) row.append("category", "kind-" + i % 12);
    row.append("word", (i % 2 == 0 ? "z\u4e2d" : "\u00e9t\u00e9") + i * 31 % 400);
    StringBuilder text = new StringBuilder();
    for (int j = 0; j < 14; j++) text.append("prefix");
    if (i % 8 != 7) row.append("long", text + String.format("%05d", i * 37 % ROWS));
    if (i % 4 != 3) row.append("binary", Binary.fromConstantByteArray(new byte[] {(byte) i, -1, 0, (byte) (i / 4)}));
    row.append("price", (i - 500) * 3);
    if (i % 7 != 6) row.append("amount", (i - 500) * 123456789L);
    row.append("total", bytes((i - 500) * 987654321L, 9)).append("fixed", bytes((i - 500) * 7L, 5));
    if (i % 9 != 8) row.append("day", i - 365);
    row.append("clock", i * 80000).append("at_ms", 1704067200000L + i * 60000L);
    if (i % 5 != 4) row.append("at_us", 1704067200000000L + i * 1000001L);
    if (i % 3 != 2) {
      byte[] int96 = new byte[12];
      long nanos = i * 1000000007L;
      int julian = 2440588 + i;
      for (int at = 0; at < 8; at++) int96[at] = (byte) (nanos >> 8 * at);
      for (int at = 0; at < 4; at++) int96[8 + at] = (byte) (julian >> 8 * at);
      row.append("at_int96", Binary.fromConstantByteArray(int96));
    }
    return row;
  }

  private static Group nested(int i) {
    Group row = new SimpleGroup(NESTED);
    row.append("id", (long) i);
    if (i % 7 != 6) {
      Group list = row.addGroup("numbers");
      for (int j = 0; j < i % 6; j++) {
        Group element = list.addGroup("list");
        if (j != 2) element.append("element", (long) (i + j));
      }
    }
    for (int j = 0; j < i % 4; j++) row.append("bare", "w" + (i + j) % 40);
    if (i % 9 != 8) {
      Group point = row.addGroup("point");
      if (i % 4 != 3) point.append("name", "p" + i % 50);
      point.append("size", i % 100);
    }
    if (i % 13 != 7) {
      Group list = row.addGroup("items");
      for (int j = 0; j < i % 5; j++) {
        Group slot = list.addGroup("list");
        if (j != 3) slot.addGroup("element").append("name", "n" + i % 30).append("size", j);
      }
    }
    if (i % 10 != 9) {
      Group map = row.addGroup("pairs");
      for (int j = 0; j < i % 4; j++) {
        Group pair = map.addGroup("key_value");
        pair.append("key", "k" + j);
        if (j != 1) pair.append("value", (long) (i * j));
      }
    }
    if (i % 5 != 4) row.append("tail", "t" + i % 77);
    return row;
  }

  /** Calls a method of the builder that this version may lack. */
  private static void set(Object builder, String name, Class<?> type, Object value) {
    try {
      Method method = builder.getClass().getMethod(name, type);
      method.invoke(builder, value);
    } catch (ReflectiveOperationException lacking) {
      System.err.println("this version lacks " + name);
    }
  }

  private static void write(File out, String table, WriterVersion version, CompressionCodecName codec, String more) {
    String variant = table + "-" + (version == WriterVersion.PARQUET_1_0 ? "v1" : "v2") + "-" + codec.name().toLowerCase() + more;
    File file = new File(out, variant + ".parquet");
    try {
      ExampleParquetWriter.Builder builder = ExampleParquetWriter.builder(new Path(file.getPath()))
          .withType(table.equals("flat") ? FLAT : NESTED)
          .withWriterVersion(version)
          .withCompressionCodec(codec)
          .withPageSize(1024)
          .withDictionaryEncoding(!more.equals("-plain"))
          .withRowGroupSize(48 * 1024);
      set(builder, "withPageRowCountLimit", int.class, 50);
      if (more.equals("-bloom")) set(builder, "withBloomFilterEnabled", boolean.class, true);
      if (more.equals("-split")) set(builder, "withByteStreamSplitEncoding", boolean.class, true);
      if (more.equals("-split")) set(builder, "withDictionaryEncoding", boolean.class, false);
      try (ParquetWriter<Group> writer = builder.build()) {
        for (int i = 0; i < ROWS; i++) writer.write(table.equals("flat") ? flat(i) : nested(i));
      }
    } catch (Throwable error) {
      file.delete();
      System.out.println("skipped " + variant + ": " + String.valueOf(error).split("\n")[0]);
    }
    new File(out, "." + variant + ".parquet.crc").delete();
  }

  public static void main(String[] arguments) {
    File out = new File(arguments[0]);
    System.out.println("writer parquet-java " + Version.VERSION_NUMBER);
    for (WriterVersion version : new WriterVersion[] {WriterVersion.PARQUET_1_0, WriterVersion.PARQUET_2_0}) {
      for (String table : new String[] {"flat", "nested"}) {
        for (String codec : new String[] {"UNCOMPRESSED", "SNAPPY", "GZIP", "ZSTD", "LZ4_RAW"}) {
          try {
            write(out, table, version, CompressionCodecName.valueOf(codec), "");
          } catch (IllegalArgumentException unknown) {
            System.out.println("skipped " + table + "-" + codec.toLowerCase() + ": this version lacks the codec");
          }
        }
        write(out, table, version, CompressionCodecName.UNCOMPRESSED, "-plain");
        write(out, table, version, CompressionCodecName.UNCOMPRESSED, "-split");
        write(out, table, version, CompressionCodecName.SNAPPY, "-bloom");
      }
    }
  }
}
