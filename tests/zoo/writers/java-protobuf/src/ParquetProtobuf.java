import com.google.protobuf.ByteString;
import com.google.protobuf.DescriptorProtos.FileDescriptorProto;
import com.google.protobuf.Descriptors.Descriptor;
import com.google.protobuf.Descriptors.FieldDescriptor;
import com.google.protobuf.Descriptors.FileDescriptor;
import com.google.protobuf.DynamicMessage;
import com.google.protobuf.Message;
import com.google.protobuf.TextFormat;
import java.io.File;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.parquet.Version;
import org.apache.parquet.column.ParquetProperties.WriterVersion;
import org.apache.parquet.hadoop.ParquetWriter;
import org.apache.parquet.hadoop.metadata.CompressionCodecName;
import org.apache.parquet.proto.ProtoParquetWriter;

/** Writes Parquet files with the Protobuf writer of parquet-java: {@code ParquetProtobuf OUT}. */
public final class ParquetProtobuf {
  private static final int ROWS = 600;
  private static final double[] DOUBLES = {Double.NaN, -0.0, 0.0, 0.5, Double.POSITIVE_INFINITY};
  private static final String[] SCALARS = {
    "n INT64", "bucket INT32", "key STRING", "f32 FLOAT", "f64 DOUBLE", "u32 UINT32", "u64 UINT64", "s64 SINT64",
    "fixed FIXED64", "flag BOOL", "binary BYTES", "long STRING", "ints INT32 REPEATED", "texts STRING REPEATED",
    "point POINT", "points POINT REPEATED", "pairs PAIR REPEATED"
  };

  private static String fields(String... specifications) {
    StringBuilder text = new StringBuilder();
    for (int i = 0; i < specifications.length; i++) {
      String[] parts = specifications[i].split(" ");
      boolean message = parts[1].equals("POINT") || parts[1].equals("PAIR");
      text.append("field { name: '").append(parts[0]).append("' number: ").append(i + 1);
      text.append(" label: LABEL_").append(parts.length == 3 ? "REPEATED" : "OPTIONAL");
      text.append(message ? " type: TYPE_MESSAGE type_name: '." + parts[1] + "'" : " type: TYPE_" + parts[1]).append(" } ");
    }
    return text.toString();
  }

  private static Descriptor row() throws Exception {
    String text = "name: 'rows.proto' syntax: 'proto2' message_type { name: 'Row' " + fields(SCALARS) + "}"
        + "message_type { name: 'POINT' " + fields("name STRING", "size INT32", "inner DOUBLE REPEATED") + "}"
        + "message_type { name: 'PAIR' options { map_entry: true } " + fields("key STRING", "value POINT") + "}";
    text = text.replace("name: 'PAIR'", "name: 'PairsEntry'").replace("'.PAIR'", "'.Row.PairsEntry'");
    // A map is a repeated message that its own message declares.
    int entry = text.lastIndexOf("message_type");
    text = text.substring(0, entry).replace("name: 'Row' ", "name: 'Row' nested_type" + text.substring(entry + 12) + " ");
    return FileDescriptor.buildFrom(TextFormat.parse(text, FileDescriptorProto.class), new FileDescriptor[0])
        .findMessageTypeByName("Row");
  }

  private static Message point(Descriptor type, int i) {
    DynamicMessage.Builder point = DynamicMessage.newBuilder(type);
    if (i % 4 != 3) point.setField(type.findFieldByName("name"), "p" + i % 9);
    if (i % 5 != 4) point.setField(type.findFieldByName("size"), i);
    for (int j = 0; j < i % 3; j++) point.addRepeatedField(type.findFieldByName("inner"), DOUBLES[(i + j) % 5]);
    return point.build();
  }

  private static Object value(FieldDescriptor field, int i) {
    switch (field.getName()) {
      case "n": return (long) i;
      case "bucket": return i / 50;
      case "key": return String.format("k%05d", i * 79 % ROWS);
      case "long": return "prefix".repeat(14) + String.format("%05d", i * 37 % ROWS);
      case "u32": return i % 3 == 0 ? -i : i;
      case "ints": return i;
      case "u64": case "s64": case "fixed": return i % 3 == 0 ? -(long) i : (long) i;
      case "f32": return (float) DOUBLES[i % 5];
      case "f64": return DOUBLES[i % 5];
      case "flag": return i % 2 == 0;
      case "binary": return ByteString.copyFrom(new byte[] {(byte) i, -1, 0});
      case "texts": return "\u00e9" + i % 7;
      default: return point(field.getMessageType(), i);
    }
  }

  private static Message message(Descriptor type, int i) {
    DynamicMessage.Builder row = DynamicMessage.newBuilder(type);
    for (FieldDescriptor field : type.getFields()) {
      if (!field.isRepeated()) {
        if (field.getNumber() < 4 || i % (field.getNumber() + 2) != 1) row.setField(field, value(field, i));
        continue;
      }
      for (int j = 0; j < i % 4; j++) {
        if (!field.isMapField()) {
          row.addRepeatedField(field, value(field, i + j));
          continue;
        }
        Descriptor entry = field.getMessageType();
        FieldDescriptor inside = entry.findFieldByName("value");
        row.addRepeatedField(field, DynamicMessage.newBuilder(entry)
            .setField(entry.findFieldByName("key"), "key" + j)
            .setField(inside, point(inside.getMessageType(), i + j))
            .build());
      }
    }
    return row.build();
  }

  public static void main(String[] arguments) throws Exception {
    System.out.println("writer parquet-protobuf " + Version.VERSION_NUMBER);
    Descriptor type = row();
    for (WriterVersion version : WriterVersion.values()) {
      for (boolean lists : new boolean[] {false, true}) {
        for (CompressionCodecName codec : new CompressionCodecName[] {
            CompressionCodecName.UNCOMPRESSED, CompressionCodecName.SNAPPY}) {
          String name = "nested-" + (version == WriterVersion.PARQUET_1_0 ? "v1-" : "v2-")
              + codec.name().toLowerCase() + (lists ? "-lists" : "-repeated");
          Configuration configuration = new Configuration();
          configuration.setBoolean("parquet.proto.writeSpecsCompliant", lists);
          try (ParquetWriter<Message> writer = ProtoParquetWriter.<Message>builder(
                  new Path(arguments[0], name + ".parquet"))
              .withDescriptor(type).withConf(configuration).withWriterVersion(version).withCompressionCodec(codec)
              .withRowGroupSize(40000L).withPageRowCountLimit(40).withBloomFilterEnabled("key", true)
              .withBloomFilterNDV("key", ROWS).build()) {
            for (int i = 0; i < ROWS; i++) writer.write(message(type, i));
          }
          new File(arguments[0], "." + name + ".parquet.crc").delete();
        }
      }
    }
  }
}
